"""`embed` on an unchanged folder imports no network and no runtime."""

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers.learned import write_run
from helpers.slow import slow
from helpers.tiny import save_image, tiny_encoder

import pucache
from pucache.cli.main import Failure, main
from pucache.encoders.encoder import load_encoder
from pucache.images.decoding import decode

HEAVY = ("torch", "torchvision", "timm", "openvino", "ray")
COMMAND = """
import json, sys
from pucache.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print(json.dumps([code, [name for name in {heavy} if name in sys.modules]]), file=sys.stderr)
"""
PLAIN = ("--device", "cpu", "--precision", "fp32", "--runtime", "torch")


def run(*arguments):
    """Run a command in a process of its own; returns its JSON, its exit code and the heavy modules it imported."""
    code = COMMAND.format(heavy=HEAVY)
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert ended.stderr, ended.stdout
    code, modules = json.loads(ended.stderr.splitlines()[-1])
    return json.loads(ended.stdout or "{}"), code, modules


@pytest.fixture(scope="module", params=["bundled", slow("pretrained")])
def embedded(request, tmp_path_factory):
    """A folder of images, its cache, and the options it was made with."""
    folder = tmp_path_factory.mktemp(request.param)
    for number in range(5):
        save_image(folder / "photos" / f"{number}.png", number)
    options = list(PLAIN)
    if request.param == "pretrained":
        write_run(folder / "run")
        options += ["--encoder", str(folder / "run")]
    main(["embed", str(folder / "photos"), str(folder / "cache.h5"), *options], standalone_mode=False)
    return folder, options


@pytest.mark.slow
def test_an_unchanged_folder_loads_no_network_and_a_changed_image_is_embedded(embedded):
    folder, options = embedded
    command = ["embed", folder / "photos", folder / "cache.h5", *options, "--json"]
    before = (folder / "cache.h5").read_bytes()
    report, code, modules = run(*command)
    assert (code, modules, report["kept"], report["computed"]) == (0, [], 5, 0)
    assert (folder / "cache.h5").read_bytes() == before
    data = save_image(folder / "photos" / "3.png", 33).read_bytes()
    report, code, modules = run(*command)
    assert (code, report["kept"], report["computed"]) == (0, 4, 1)
    assert {"torch", "timm"} <= set(modules)
    cache = pucache.EmbeddingCache(folder / "cache.h5")
    name = options[options.index("--encoder") + 1] if "--encoder" in options else "bundled"
    encoder = load_encoder(name, device="cpu", precision="fp32", runtime="torch")
    np.testing.assert_allclose(cache.X[3], encoder([decode(data)])[0], rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_an_image_that_is_gone_is_pruned_without_a_network(tmp_path):
    for number in range(3):
        save_image(tmp_path / "photos" / f"{number}.png", number)
    command = ["embed", str(tmp_path / "photos"), str(tmp_path / "cache.h5"), *PLAIN]
    main(command, standalone_mode=False)
    (tmp_path / "photos" / "1.png").unlink()
    report, code, modules = run(*command, "--prune", "--json")
    assert (code, report["rows"], report["vanished"], modules) == (0, 2, 1, [])


def test_another_encoder_is_refused_by_name_and_nothing_is_written(embedded, tmp_path):
    folder, _ = embedded
    write_run(tmp_path / "other", seed=1)
    before = (folder / "cache.h5").read_bytes()
    for other in (str(tmp_path / "other"), "timm:test_resnet"):
        arguments = [*PLAIN, "--encoder", other, "--precision", "bf16"]
        if other.startswith("timm:"):
            arguments += ["--weights", str(weights_of(tmp_path))]
        with pytest.raises(Failure, match=r"holds embeddings of .*, not of (pretrained|timm):test_resnet.*differ in"):
            main(["embed", str(folder / "photos"), str(folder / "cache.h5"), *arguments], standalone_mode=False)
    assert (folder / "cache.h5").read_bytes() == before


def weights_of(folder):
    import safetensors.torch

    from pucache.encoders.backbones import untrained

    safetensors.torch.save_file(untrained("test_resnet").state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


# --- from Python -----------------------------------------------------------------------------------


def test_embed_takes_strings_and_returns_the_opened_cache(image_folder, tmp_path):
    folder = image_folder(4)
    write_run(tmp_path / "run")
    settings = {"device": "cpu", "precision": "fp32", "runtime": "torch", "batch_size": 2}
    cache = pucache.embed(str(folder), str(tmp_path / "cache.h5"), tmp_path / "run", **settings)
    assert isinstance(cache, pucache.EmbeddingCache) and len(cache) == 4
    again = pucache.embed(folder, tmp_path / "cache.h5", str(tmp_path / "run"), device="cpu")
    assert again.encoder == cache.encoder, "what is auto follows the cache"
    np.testing.assert_array_equal(again.X, cache.X)


def test_embed_takes_a_source_and_an_encoder(image_folder, tmp_path):
    source = pucache.open_source(image_folder(3))
    cache = pucache.embed(source, tmp_path / "cache.h5", tiny_encoder(), dtype="float32", workers=0)
    assert cache.X.dtype == np.float32 and list(cache.keys) == ["000.png", "001.png", "002.png"]


def test_settings_beside_an_encoder_that_is_loaded_are_refused(image_folder, tmp_path):
    with pytest.raises(ValueError, match=r"^the encoder is loaded already; pass weights, device and precision to load"):
        pucache.embed(image_folder(1), tmp_path / "cache.h5", tiny_encoder(), precision="fp32")
    assert not (tmp_path / "cache.h5").exists()
