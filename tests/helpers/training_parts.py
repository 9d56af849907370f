"""Small trainings, for tests and for the processes that tests start."""

import dataclasses

import numpy as np
import timm
import torch
from PIL import Image

from pucache.encoders.pretrained_file import Description
from pucache.pretraining import process_group
from pucache.pretraining.network import Network, NetworkConfig, build_network
from pucache.pretraining.recipes import RECIPES
from pucache.pretraining.train_step import Training

N, SIDE, BATCH = 28, 16, 8
IMAGES = torch.from_numpy(np.random.default_rng(5).integers(0, 256, (N, SIDE, SIDE, 3), np.uint8))
CPU = torch.device("cpu")


def save_photos(folder):
    """Write the images as files, and return their folder."""
    for number, image in enumerate(IMAGES.numpy()):
        Image.fromarray(image).save(folder / f"{number:03}.png")
    return folder


def recipe(name="modern", **changes):
    return dataclasses.replace(RECIPES[name], **{"batch_size": BATCH, "epochs": 4, **changes})


def with_norms():
    """A network with batch norms, in the projector too."""
    return build_network(NetworkConfig("test_resnet", size=SIDE), norm=True, seed=0)


def without_norms(dropout=0.0):
    torch.manual_seed(0)
    return _toy(torch.nn.Conv2d(3, 12, 5, stride=3), torch.nn.ReLU(), torch.nn.Dropout(dropout), norm=False)


def with_two_norms():
    """One in the backbone, one in the projector: processes talk at each, which takes its time on a busy machine."""
    torch.manual_seed(0)
    return _toy(torch.nn.Conv2d(3, 12, 5, stride=3), timm.layers.BatchNormAct2d(12), norm=True)


def _toy(*layers, norm):
    description = Description("toy", "standard", SIDE, [0.5] * 3, [0.25] * 3, "bilinear", 0)
    return Network(torch.nn.Sequential(*layers, torch.nn.Flatten()), description, norm=norm)


def training(network, how, *, seed=3, images=N, dtype=torch.float32, device=CPU):
    return Training(network, how, images=images, seed=seed, device=device, dtype=dtype)


def train(trained, first=0, steps=10):
    """Take steps; gives the losses."""
    return [
        trained.step(number, IMAGES[rows])[0].item()
        for number, rows in zip(range(first, first + steps), trained.batch_rows(first), strict=False)
    ]


def state(network):
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def gradients(network):
    return {name: parameter.grad.clone() for name, parameter in network.named_parameters()}


def trained(network, how, steps=10):
    """Losses and the state after some steps, in as many processes as there are."""
    with process_group.joined("cpu"):
        run = training(network, how)
        return train(run, steps=steps), state(run.network)
