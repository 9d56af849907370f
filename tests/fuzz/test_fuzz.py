"""Rubbish is refused by name: no crash, no hang, nothing written beside the output, no wrong answer."""

import mmap
import os
import pickle
import signal
import time
from functools import partial

import pytest
from helpers.slow import slow

from fuzz.array_targets import MARKER, RunsCode, hostile_arrays, hostile_weights, require_no_code_was_run
from fuzz.cache_samples import hostile
from fuzz.cache_targets import check_command
from fuzz.image_samples import bombs
from fuzz.oracle import Wrong, require
from fuzz.regressions import regressions
from fuzz.runner import given, numbered, run
from fuzz.table_targets import slow_globs
from fuzz.tar_samples import claims, tars
from fuzz.target import Target
from fuzz.targets import TARGETS, prepare
from pucache.errors import CacheError, SourceError
from pucache.images.source import open_source

INPUTS, MANY_INPUTS = 400, 3000

pytestmark = pytest.mark.usefixtures("samples")


@pytest.fixture(scope="module")
def samples(one_thread):
    prepare()


def tallies(inputs, seed):
    """Every target's tally of one run over all of them."""
    total = sum(target.share for target in TARGETS.values())
    counts = {name: max(5, inputs * target.share // total) for name, target in TARGETS.items()}
    jobs = [job for name, count in counts.items() for job in numbered(TARGETS[name], seed, range(count))]
    return run(jobs, children=2)


@pytest.fixture(scope="module")
def fuzzed(samples):
    return tallies(INPUTS, seed=0)


@pytest.fixture(scope="module")
def fuzzed_long(samples):
    return tallies(MANY_INPUTS, seed=1)


def outcomes(target, inputs, **options):
    """What became of the inputs, none of which may make trouble."""
    tally = run(given(target, inputs), **options)[target.name]
    assert not tally.troubles, "\n".join(f"{t.kind}: {t.label}: {t.what}" for t in tally.troubles)
    assert tally.inputs == len(inputs)
    return tally.outcomes


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_refused_by_name_or_read_right(fuzzed, name):
    assert_no_trouble(fuzzed[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_much_more_damaged_input_is_refused_by_name_or_read_right(fuzzed_long, name):
    assert_no_trouble(fuzzed_long[name])


def assert_no_trouble(tally):
    assert not tally.troubles, "\n".join(f"{t.kind}: {t.label} of {t.sample}: {t.what}" for t in tally.troubles[:20])
    assert tally.inputs


COMMANDS = ("embed", "cache command")  # a process or an encoder for each sample


@pytest.mark.parametrize("name", [slow(name) if name in COMMANDS else name for name in TARGETS])
def test_every_sample_is_accepted_as_it_is(name):
    target = TARGETS[name]
    whole = {
        label: data
        for label, data in target.samples().items()
        if not label.startswith(("huge.", "empty.tar", "no-end"))
    }
    refused = {error.__name__ for error in target.refusals} | {"refused", "failure"}
    assert not refused & set(outcomes(target, whole))


@pytest.mark.parametrize(
    "name", ["glob", "keys", "npy", "scores parquet", "cache command", "cache resealed", "model resealed"]
)
def test_what_was_found_once_stays_mended(name):
    outcomes(TARGETS[name], regressions()[name])


def test_the_same_seed_and_number_make_the_same_input():
    for target in TARGETS.values():
        made = [target.input(3, number) for number in range(8)]
        assert made == [target.input(3, number) for number in range(8)]
        assert len({data for _, data in made}) > 3


# --- special cases -----------------------------------------------------------------------------


def test_an_image_that_asks_for_much_memory_gets_what_its_pixels_need():
    found = outcomes(TARGETS["decode"], bombs())
    assert set(found) == {"ImageError", "decoded"} and found["decoded"] <= 4


@pytest.mark.parametrize("name", ["tar", "tar glob"])
def test_a_size_that_a_tar_header_claims_is_not_allocated_nor_followed_backwards(name):
    outcomes(TARGETS[name], claims())


def test_no_link_is_followed_out_of_a_tar(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.png").write_bytes(b"secret")
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/links.tar").write_bytes(tars()["links.tar"])
    source = open_source(tmp_path / "a/b/links.tar")
    listing = source.scan()
    assert set(listing.failures) == {
        "soft.png",
        "hard.png",
        "out.png",
        "hard-out.png",
        "passwd.png",
        "loop.png",
        "b.png",
    }
    assert {key: source.read(key)[:4] for key in listing.keys} == dict.fromkeys(
        ["a.png", "folder/secret.png"], b"\x89PNG"
    )


def test_a_damaged_shard_costs_the_others_nothing():
    assert set(outcomes(TARGETS["tar glob"], {"empty": b"", "text": b"no tar" * 200})) == {"read, with failures"}


def test_a_manifest_that_names_a_caching_url_writes_nothing():
    urls = ("simplecache::file:///no/such.png", "filecache::file:///etc/hostname.png", "blockcache::memory://a.png")
    outcomes(TARGETS["manifest"], {"plain.txt": "\n".join(["a.png", *urls]).encode()})


def test_a_cache_built_to_do_harm_is_refused_or_agrees_with_itself():
    assert outcomes(TARGETS["cache resealed"], hostile())["CacheError"] >= 20


@pytest.mark.slow
def test_the_command_survives_a_cache_built_to_do_harm():
    target = Target("command", hostile, partial(check_command, resealed=True), (), 0)
    assert outcomes(target, hostile())["refused"] >= 20


@pytest.mark.slow
def test_a_glob_that_backtracks_comes_to_an_end():
    outcomes(TARGETS["glob"], slow_globs())


def test_an_array_that_is_not_plain_numbers_is_refused_and_never_unpickled():
    assert set(outcomes(TARGETS["npy"], hostile_arrays())) == {"CacheError"}


def test_weights_that_would_run_code_are_refused_and_not_run():
    inputs = hostile_weights()
    found = outcomes(TARGETS["weights"], inputs)
    assert found["EncoderError"] >= len(inputs) - 1 and set(found) <= {"EncoderError", "loaded"}


def test_the_trap_in_those_files_would_be_noticed():
    pickle.loads(pickle.dumps(RunsCode()))
    assert MARKER.exists()
    with pytest.raises(Wrong, match="code from the file was run"):
        require_no_code_was_run()
    assert not MARKER.exists()


# --- the runner itself -------------------------------------------------------------------------


def _misbehaving(sample, data, folder):
    match sample:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            while True:
                pass
        case "asleep":
            time.sleep(3600)
        case "quit":
            os._exit(3)
        case "wrong":
            require(False, "two and two are five")
        case "unexpected":
            raise KeyError("nobody catches this")
        case "memory":
            area = mmap.mmap(-1, 300 << 20)  # anew from the system: freed memory may lie ready in the process
            for page in range(0, len(area), mmap.PAGESIZE):
                area[page] = 1
        case "address space":
            bytearray(1 << 40)
        case "spill":
            (folder.parent.parent / "outside/new").write_text("here")
        case "two lines":
            raise CacheError("one\ntwo")
        case "another error":
            raise SourceError("not of this reader")
        case "refused":
            raise CacheError("as it should be")
    return "fine"


MISBEHAVING = Target("misbehaving", dict, _misbehaving, (CacheError,), 0)


@pytest.mark.parametrize(
    ("sample", "kind", "what"),
    [
        ("crash", "crash", "SIGSEGV"),
        ("hang", "hang", "not done after 2 s of CPU time; File"),
        ("quit", "crash", "ended with 3"),
        ("wrong", "wrong", "two and two are five"),
        ("unexpected", "unexpected", "KeyError"),
        ("memory", "memory", "MB more"),
        ("address space", "unexpected", "MemoryError"),
        ("spill", "spill", "outside/new"),
        ("two lines", "wrong", "not one line"),
        ("another error", "unexpected", "SourceError"),
    ],
)
@pytest.mark.slow
def test_the_runner_notices_and_goes_on(tmp_path, sample, kind, what):
    inputs = {"before": b"1", sample: b"at fault", "refused": b"2", "after": b"3"}
    tally = run(given(MISBEHAVING, inputs), found=tmp_path / "found", timeout=2)["misbehaving"]
    assert tally.outcomes == {"fine": 2, kind: 1, "CacheError": 1}
    (trouble,) = tally.troubles
    assert (trouble.kind, trouble.label, trouble.sample) == (kind, sample, sample) and what in trouble.what
    (saved,) = (tmp_path / "found").iterdir()
    assert saved.read_bytes() == b"at fault"


@pytest.mark.slow
def test_an_input_that_waits_for_ever_is_a_hang_too(monkeypatch):
    monkeypatch.setattr("fuzz.runner.ASLEEP", 2)
    tally = run(given(MISBEHAVING, {"asleep": b""}))["misbehaving"]
    assert [(trouble.kind, trouble.what[:14]) for trouble in tally.troubles] == [("hang", "not done after")]


def test_several_children_count_every_input_once():
    tally = run(given(MISBEHAVING, {f"input {n}": b"" for n in range(250)}), children=3)["misbehaving"]
    assert tally.outcomes == {"fine": 250}
