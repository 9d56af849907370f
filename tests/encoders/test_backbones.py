import os
import socket
import subprocess
import sys
from functools import partial

import pytest
import torch
from helpers.refusals import one_line

from pucache.encoders.backbones import untrained
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")

SIDE = 32


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        pytest.fail("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


refusal = partial(one_line, EncoderError)


def side_after(layer, architecture, stem):
    """What a layer of a network makes of a square of SIDE pixels; takes neither time nor memory."""
    made = []
    with torch.device("meta"):
        model = untrained(architecture, stem=stem).eval()
        model.get_submodule(layer).register_forward_hook(lambda _, given, output: made.append(output.shape))
        model(torch.zeros(1, 3, SIDE, SIDE))
    return made[0][-1]


FIRST_STAGE = {  # layer: what it makes of 32 pixels, with the standard stem
    "resnet18": ("layer1", 8),
    "dpn48b": ("features.conv1_pool", 8),
    "test_resnet": ("layer1", 8),
    "test_efficientnet": ("conv_stem", 16),
    "vgg11": ("features.0", 32),
}


@pytest.mark.parametrize("architecture", FIRST_STAGE)
def test_a_small_stem_skips_no_pixel_before_the_first_stage(architecture):
    layer, standard = FIRST_STAGE[architecture]
    assert side_after(layer, architecture, "standard") == standard
    assert side_after(layer, architecture, "small") == SIDE


@pytest.mark.parametrize(
    "architecture",
    [
        "test_vit",  # patches
        "mobileone_s0",  # convolutions side by side, which would make pictures of two sizes
        "tresnet_m",  # over squares of pixels that were stacked before
        "naflexvit_base_patch16_gap",  # no convolution at all
    ],
)
def test_what_does_not_begin_with_one_convolution_over_pixels_has_no_small_stem(architecture):
    told = f"{architecture} does not begin with one convolution over pixels, as a small stem must"
    with torch.device("meta"):
        assert refusal(untrained, architecture, stem="small") == told


# --- the hub -----------------------------------------------------------------------------------

WITHOUT_PAUSES = """
import time
from pucache.cli.main import run

pauses = []
time.sleep = pauses.append
try:
    run()
finally:
    open("pauses", "w").write(" ".join(map(str, pauses)))
"""


@pytest.mark.slow
def test_no_hub_in_reach_is_one_line_soon_with_the_way_out(tmp_path):
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "TORCH_HOME": str(tmp_path)}
    (tmp_path / "images").mkdir()
    command = [sys.executable, "-c", WITHOUT_PAUSES, "embed", "images", "cache.h5", "--encoder", "timm:resnet18"]
    ended = subprocess.run(command, env={**os.environ, **closed}, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1 and ended.stdout == ""
    assert ended.stderr.startswith("Error: cannot fetch the pretrained weights of resnet18 (")
    assert "--weights FILE" in ended.stderr and "use the bundled one" in ended.stderr
    assert sum(map(float, (tmp_path / "pauses").read_text().split())) < 5, "the hub's client retries for 45 s"
