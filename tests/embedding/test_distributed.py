"""Ray's engine: real processes of Ray on this machine, which end with the tests."""

import contextlib
import json
import pickle
import signal
import socket
import threading
import time

import numpy as np
import pytest
import ray
import torch
from helpers.learned import write_run
from helpers.ray_cluster import BLOCK, Cluster, Command, eventually, free_port
from helpers.ray_sources import Buggy, Deadly, DeadlyOnce, Held, Mixed, Pile, Unmounted
from helpers.slow import slow
from helpers.tiny import save_image, tiny_encoder
from ray import cloudpickle
from ray.data import DataContext, ExecutionResources

from pucache.cli.main import main
from pucache.distributed.cluster import joined
from pucache.embedding import row_blocks
from pucache.embedding.distributed import engine
from pucache.embedding.distributed.engine import RayEngine
from pucache.embedding.embed import run_embedding
from pucache.embedding.plan import EmbedOptions
from pucache.encoders.encoder import load_encoder
from pucache.errors import EngineError
from pucache.images.device_decoding import DeviceDecoder
from pucache.progress import Silent

pytestmark = pytest.mark.usefixtures("one_thread", "fixed_time")

COUNT = 3 * BLOCK + 30  # images
BROKEN = [3, *range(50, 60), COUNT - 1]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", BLOCK)
    monkeypatch.setattr(engine, "_CHUNK_ROWS", {"cpu": 8, "cuda": 8})


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with a core each, and GPUs that nothing computes on; this process has joined them."""
    with Cluster() as nodes:
        nodes.start("--num-cpus=1")
        nodes.start("--num-cpus=1", "--num-gpus=2")
        with joined(nodes.address):
            assert eventually(lambda: len(alive()) == 2), nodes.logs
            yield nodes


def alive():
    return [node for node in ray.nodes() if node["Alive"]]


@pytest.fixture
def pile(tmp_path):
    """Make a source of some class."""
    return lambda kind=Pile, count=COUNT, **options: kind(tmp_path / "read.log", count, **options)


def by_ray(source, cache, *, workers=1, encoder=None, progress=None, **options):
    with RayEngine(workers=workers) as engine:
        settings = {"engine": engine, "progress": progress, "options": EmbedOptions(**options)}
        return run_embedding(source, cache, encoder or tiny_encoder(), **settings)


def here(source, cache, *, progress=None, **options):
    chosen = EmbedOptions(**options)
    return run_embedding(source, cache, tiny_encoder(), workers=0, options=chosen, progress=progress)


class Stop(Silent):
    """Ctrl-C once a block is safe."""

    def __init__(self, cache):
        self._parts = cache.with_name(f"{cache.name}.parts")

    def advance(self, steps):
        if list(self._parts.glob("part-*.h5")):
            raise KeyboardInterrupt


def said(command):
    """What a command has said but for its progress, which it tells every ten seconds."""
    return [line for line in command.stderr.split("\n") if line and not line.startswith("embedding ")]


def parts(cache):
    return sorted(cache.with_name(f"{cache.name}.parts").glob("part-*.h5"))


# --- the result ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "workers"), [slow(8, 2), slow(24, 1)])
def test_the_cache_is_to_the_byte_the_one_of_one_machine(cluster, pile, tmp_path, monkeypatch, rows, workers):
    monkeypatch.setattr(engine, "_CHUNK_ROWS", {"cpu": rows})
    known = tmp_path / "known.h5"
    here(Pile(tmp_path / "known.log", 30, name="known"), known)
    source = pile(broken=BROKEN, distinct=130)
    local = here(source, tmp_path / "here.h5", reuse=[known])
    source.log.unlink()
    report = by_ray(source, tmp_path / "ray.h5", workers=workers, reuse=[known])
    assert (tmp_path / "ray.h5").read_bytes() == (tmp_path / "here.h5").read_bytes()
    assert (report.computed, report.reused, report.failures) == (local.computed, local.reused, local.failures)
    assert sorted(source.begun()) == list(range(1, COUNT))
    stages = {"starting", "reading", "hashing", "decoding", "resizing", "encoder", "writing"}
    assert stages <= set(report.profile.seconds) and 0 <= report.profile.waited <= 1 and report.profile.wall > 0


@pytest.mark.slow
def test_what_one_machine_has_begun_ray_goes_on_with_and_the_other_way_round(cluster, pile, tmp_path):
    source = pile(broken=BROKEN)
    here(source, tmp_path / "whole.h5")
    one, other = tmp_path / "one.h5", tmp_path / "other.h5"
    with pytest.raises(KeyboardInterrupt):
        here(source, one, progress=Stop(one))
    with pytest.raises(KeyboardInterrupt):
        by_ray(source, other, progress=Stop(other))
    source.log.unlink()
    for go_on, cache in ((by_ray, one), (here, other)):
        left = COUNT - BLOCK * len(parts(cache))
        assert 0 < left < COUNT
        go_on(source, cache)
        assert len(set(source.begun()) - set(BROKEN)) <= left  # what cannot be read is tried again
        source.log.unlink()
        assert cache.read_bytes() == (tmp_path / "whole.h5").read_bytes()


@pytest.fixture
def logical_gpus(monkeypatch):
    """Let the engine take the path for GPUs, while encoders run on the CPU."""
    stream, actors = engine._stream, RayEngine._actors
    monkeypatch.setattr(engine, "_stream", lambda *arguments: stream(*arguments[:-1], "cuda"))
    monkeypatch.setattr(RayEngine, "_actors", lambda self, kind: actors(self, "cuda"))


@pytest.mark.slow
def test_beside_gpus_tasks_decode_and_what_the_device_decodes_is_left_to_it(cluster, pile, tmp_path, logical_gpus):
    def encoder():
        made = tiny_encoder()
        made.decoder = DeviceDecoder(made.preprocess, torch.device("cpu"))
        return made

    source = pile(Mixed, broken=[51, 52])
    local = run_embedding(source, tmp_path / "here.h5", encoder(), workers=0)
    report = by_ray(source, tmp_path / "ray.h5", workers=None, encoder=encoder())
    assert report.profile.passes == 2  # one for each GPU
    assert (tmp_path / "ray.h5").read_bytes() == (tmp_path / "here.h5").read_bytes()
    assert report.failures == local.failures and len(report.failures) == 2


class Slow(Silent):
    """Lets everybody run ahead once the first results are there, and counts how many images were begun by then."""

    def __init__(self, source):
        self._source, self.ahead = source, 0

    def advance(self, steps):
        if not self.ahead:
            counts = [0]
            while len(counts) < 40 or counts[-40] != counts[-1]:
                time.sleep(0.05)
                counts.append(len(self._source.begun()))
            self.ahead = counts[-1]


@pytest.mark.slow
def test_what_is_done_does_not_pile_up_before_a_slow_driver(cluster, pile, tmp_path, monkeypatch):
    options = DataContext.get_current().execution_options
    monkeypatch.setattr(options, "resource_limits", ExecutionResources(object_store_memory=30_000))
    source = pile(count=800)
    slow = Slow(source)
    assert by_ray(source, tmp_path / "ray.h5", progress=slow).rows == 800
    assert 8 < slow.ahead <= 400, "of 800"


# --- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_worker_costs_a_chunk_and_changes_nothing(cluster, pile, tmp_path):
    source = pile(DeadlyOnce)
    by_ray(source, tmp_path / "ray.h5")
    begun = source.begun()
    here(pile(), tmp_path / "here.h5")
    assert (tmp_path / "ray.h5").read_bytes() == (tmp_path / "here.h5").read_bytes()
    assert sorted(set(begun)) == list(range(1, COUNT))
    assert 0 < len(begun) - len(set(begun)) <= 8


@pytest.mark.slow
def test_a_bug_is_told_as_it_is(cluster, pile, tmp_path):
    with pytest.raises(RuntimeError, match=r"^a bug in a source$"):
        by_ray(pile(Buggy, count=80), tmp_path / "ray.h5")


@pytest.mark.slow
def test_an_image_that_kills_every_worker_is_named(cluster, pile, tmp_path):
    source = pile(Deadly, count=80)
    with pytest.raises(EngineError, match=r"^a worker died 4 times at '0050\.ppm' .*; what was finished is kept: run"):
        by_ray(source, tmp_path / "ray.h5")
    assert source.begun().count(50) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_command_says_so_and_leaves_nothing_running(cluster, pile, tmp_path, kind):
    source, cache = pile(Held), tmp_path / "ray.h5"
    where = ["--address", cluster.address] if kind == signal.SIGTERM else []
    with Command(source, cache, "--workers", "1", *where) as command:
        assert eventually(lambda: source.number in source.begun()), command.stderr
        assert eventually(lambda: len(parts(cache)) == 2), command.stderr
        command.send(kind)
        assert command.wait() == 128 + kind
        assert said(command) == ["interrupted; nothing is lost: run the same command again to go on"]
        assert command.stdout == ""
        assert eventually(lambda: not command.left())
    assert_goes_on(source, cache, tmp_path)


@pytest.mark.slow
def test_a_killed_command_leaves_nothing_running_and_the_next_one_goes_on(pile, tmp_path):
    source, cache = pile(Held), tmp_path / "ray.h5"
    with Command(source, cache, "--workers", "1") as command:
        assert eventually(lambda: source.number in source.begun()), command.stderr
        assert eventually(lambda: len(parts(cache)) == 2), command.stderr
        command.send(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        assert eventually(lambda: not command.left(agents=False), 30)  # which go by themselves after a minute
    assert_goes_on(source, cache, tmp_path)


def assert_goes_on(source, cache, tmp_path):
    """What was safe is not read again, and the result is the one of an undisturbed run."""
    source.log.with_suffix(".go").touch()
    source.log.unlink()
    report = here(source, cache)
    assert report.computed == COUNT - 2 * BLOCK
    assert min(source.begun()) == 2 * BLOCK
    here(source, tmp_path / "whole.h5")
    assert cache.read_bytes() == (tmp_path / "whole.h5").read_bytes()


# --- clusters that cannot be used --------------------------------------------------------------------

VERSION = "import sys, types; sys.modules['pucache'] = found = types.ModuleType('pucache'); found.__version__ = '0.0.1'"
UNFIT = {
    "another version": (VERSION, {}, r"has pucache 0\.0\.1, this machine pucache \d.*; install the same version"),
    "none": ("import sys; sys.modules['pucache'] = None", {}, r"has no pucache, this machine pucache \d.*; install"),
    "no images": ("", {"UNMOUNTED": "1"}, r"does not see the images of pile: '0000\.ppm' cannot be read: No such"),
}


@pytest.mark.parametrize(
    ("site", "environ", "told"),
    [pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in UNFIT.items()],
)
def test_a_node_that_is_unfit_is_refused_by_name(cluster, pile, tmp_path, site, environ, told):
    (tmp_path / "sitecustomize.py").write_text(site)
    before = {node["NodeID"] for node in alive()}
    node = cluster.start("--num-cpus=1", PYTHONPATH=str(tmp_path), **environ)
    assert eventually(lambda: len(alive()) == len(before) + 1)
    (added,) = [found for found in alive() if found["NodeID"] not in before]
    try:
        with pytest.raises(EngineError, match=rf"^node \S+ \(\S+, {added['NodeID'][:8]}\) {told}"):
            by_ray(pile(Unmounted), tmp_path / "ray.h5")
    finally:
        cluster.stop(node)
        assert eventually(lambda: len(alive()) == len(before))
    assert not (tmp_path / "ray.h5").exists()


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "nowhere", "nowhere:port", ":6379", "127.0.0.1:99999999"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(EngineError, match=r"the address of a Ray cluster is HOST:PORT|no Ray cluster answers at"):
        joined(address).__enter__()


def test_an_address_where_nobody_listens_is_refused():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(EngineError, match=rf"^no Ray cluster answers at {address} \(.*efused\); start one there"):
        joined(address).__enter__()


@contextlib.contextmanager
def answering(with_what):
    """Yield the address of a server that is none of Ray's."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                client, _ = server.accept()
                with client:
                    client.sendall(with_what)
                    client.recv(2**16)
                    client.recv(1)  # until it goes

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_is_none_of_rays_is_refused(answer, monkeypatch):
    monkeypatch.setattr("pucache.distributed.cluster._CONNECT_SECONDS", 0.5)
    with answering(answer) as address, pytest.raises(EngineError, match=f"^no Ray cluster answers at {address} "):
        joined(address).__enter__()


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token_is_told_apart_from_one_that_is_not_there():
    with Cluster() as guarded:
        guarded.start("--num-cpus=1", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64)
        with pytest.raises(
            EngineError, match=rf"^the Ray cluster at {guarded.address} asks for a token .* RAY_AUTH_TOKEN"
        ):
            joined(guarded.address).__enter__()


def test_a_process_that_has_joined_a_cluster_joins_no_other(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match=r"has joined a Ray cluster already, and cannot join 127\.0\.0\.1:6379; leave"):
        RayEngine("127.0.0.1:6379").__enter__()


@pytest.mark.slow
def test_within_a_cluster_that_was_joined_the_engine_leaves_it_joined(cluster):
    with pytest.raises(ValueError, match="has joined a Ray cluster already"):
        RayEngine("127.0.0.1:6379").__enter__()
    with RayEngine() as does:
        assert does.device().type == "cuda"  # as the cluster says that it has some
    assert ray.is_initialized()


# --- what is sent ----------------------------------------------------------------------------------


def encoder_of(kind, folder):
    if kind == "pretrained":
        write_run(folder)
        return load_encoder(folder, device="cpu", runtime="torch", precision="fp32")
    return load_encoder(device="cpu", runtime="torch", decode="device" if kind == "device" else "host")


@pytest.mark.parametrize("kind", [slow("bundled"), slow("device"), "pretrained"])
def test_an_encoder_arrives_as_it_was_sent(tmp_path, kind):
    encoder = encoder_of(kind, tmp_path)
    arrived = pickle.loads(cloudpickle.dumps(encoder))
    assert arrived.spec == encoder.spec and arrived.runtime.batch_size == encoder.runtime.batch_size
    assert (arrived.decoder is None) == (encoder.decoder is None)
    pixels = torch.randint(0, 256, (3, *encoder.spec.input_size, 3), dtype=torch.uint8)
    np.testing.assert_array_equal(arrived.forward(pixels), encoder.forward(pixels))
    with pytest.raises(TypeError, match="an encoder that has run cannot be sent to another process; load it anew"):
        cloudpickle.dumps(encoder)


# --- the command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--address", "127.0.0.1:6379"], "--address is for a Ray cluster; add --engine ray, or leave it out"),
        (["--engine", "ray", "--workers", "0"], "the engine ray needs at least 1 worker, got 0"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(tmp_path, capsys, options, told):
    save_image(tmp_path / "images" / "0.png", 0)
    with pytest.raises(SystemExit) as end:
        main(["embed", str(tmp_path / "images"), str(tmp_path / "cache.h5"), *options], prog_name="pucache")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"Error: {told}\n"


def test_a_single_gpu_cannot_be_asked_for():
    with pytest.raises(ValueError, match=r"Ray shares out GPUs itself: its device is auto, cpu or cuda, got 'cuda:1'"):
        RayEngine().device("cuda:1")


@pytest.mark.slow
def test_the_command_starts_ray_by_itself_and_prints_what_one_machine_does(tmp_path):
    for number in range(12):
        save_image(tmp_path / "images" / f"{number:02}.png", number)
    (tmp_path / "images" / "empty.png").touch()
    told, at = [], {"SOURCE_DATE_EPOCH": "1700000000"}
    for cache, options in (("ray.h5", []), ("local.h5", ["--engine", "local"])):
        options += ["--json", "--profile", "--device", "cpu"]
        home = str(tmp_path / "images" / "00.png" / "nowhere")  # which nobody can make
        with Command(tmp_path / "images", tmp_path / cache, *options, HOME=home, RAY_AUTH_MODE="", **at) as command:
            assert command.wait() == 0, command.stderr
            assert said(command) == []
            told.append(json.loads(command.stdout))
            assert eventually(lambda command=command: not command.left())
    ray_told, local_told = told
    assert (tmp_path / "ray.h5").read_bytes() == (tmp_path / "local.h5").read_bytes()
    differing = {name for name in ray_told if ray_told[name] != local_told[name]}
    assert differing <= {"cache", "seconds", "profile", "cosine_to_fp32"}
    assert ray_told["cosine_to_fp32"] > 0.99 and ray_told["profile"]["busy"]["encoder"] > 0
