"""A tiny encoder as pretrain leaves it in the folder of a run, but for the training."""

import torch

from pucache.encoders import pretrained_file
from pucache.encoders.backbones import untrained
from pucache.encoders.pretrained_file import Description

ARCHITECTURE = "test_resnet"
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def description(**changed):
    fields = {"architecture": ARCHITECTURE, "stem": "small", "size": 24, "mean": MEAN, "std": STD}
    return Description(**{**fields, "interpolation": "bilinear", "steps": 7, **changed})


def network(architecture=ARCHITECTURE, stem="small", seed=0):
    """Draw a network whose batch norms have statistics of their own, as after a training."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = untrained(architecture, stem=stem)
        for name, values in model.named_buffers():
            if name.endswith("running_mean"):
                values.uniform_(-0.2, 0.2)
            if name.endswith("running_var"):
                values.uniform_(0.5, 1.5)
    return model.eval()


def write_run(folder, *, seed=0, **changed):
    """Write the encoder of a run; returns the network that is in it."""
    written = description(**changed)
    model = network(written.architecture, written.stem, seed)
    pretrained_file.write(folder / pretrained_file.NAME, model, written)
    return model
