"""Options that several verbs share, and how results are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

caches = click.argument("cache", nargs=-1, required=True)
positives = click.option(
    "--positives",
    required=True,
    metavar="FILE|GLOB",
    help="Labelled positives: a text file of keys (paths within the source), a CSV with a 'key' column (and, where it "
    "has a 'label' column, those labelled 1), or a glob on keys ('positives/**').",
)
negatives = click.option(
    "--negatives",
    metavar="FILE|GLOB",
    help="Known negatives, such as what a review rejected: as --positives, but those labelled 0.",
)
images = click.option(
    "--images", metavar="SOURCE", help="Where the images are now, if not where they were when CACHE was made."
)
device = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
seed = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Makes the result repeatable."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
strict = click.option("--strict", is_flag=True, help="Exit with 3 when an image could not be read.")


_ENCODING = "weights device precision runtime decode batch_size workers engine address shard".split()


def encoding(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every verb that runs an encoder."""
    for option in (
        click.option("--shard", metavar="I/N", help="Embed only the I-th of N shares of the images."),
        click.option(
            "--address",
            metavar="HOST:PORT|auto",
            help="Ray cluster to join.  [default: RAY_ADDRESS; without it Ray is started on this machine]",
        ),
        click.option(
            "--engine",
            default="local",
            show_default=True,
            type=click.Choice(["local", "ray"]),
            help="What does the work: this machine, or Ray (pip install 'pucache[ray]').",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=0),
            help="Processes that read and decode, or encoders of Ray.  [default: with CUDA one per core, up to 16, "
            "else 0, for threads; Ray: one per GPU, or per core without]",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            help="Images per forward pass.  [default: 16 on CPU, 4 with openvino; with CUDA what fits]",
        ),
        click.option(
            "--precision",
            default="auto",
            show_default=True,
            type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
            help="Of the forward pass; auto is fp16 on CUDA, bf16 on a CPU that has it, else fp32, and what CACHE has.",
        ),
        click.option(
            "--decode",
            default="auto",
            show_default=True,
            type=click.Choice(["auto", "host", "device"]),
            help="Where JPEG files are decoded; device: where the encoder runs, a batch at a time. auto is host.",
        ),
        click.option(
            "--runtime",
            default="auto",
            show_default=True,
            type=click.Choice(["auto", "torch", "compile", "openvino"]),
            help="What runs the encoder; auto is openvino on a CPU where it is installed, else torch. compile takes up "
            "to a minute to start.",
        ),
        device,
        click.option(
            "--weights",
            metavar="FILE",
            help="Weights of a timm encoder: safetensors or a state dict; of one that pretrain made: its RUN_DIR.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def opened_engine(kind: str, address: str | None, workers: int | None) -> Iterator[Any]:
    """The engine that the options of `encoding` ask for."""
    if kind == "ray":
        from pucache.embedding.distributed.engine import RayEngine

        with RayEngine(address, workers=workers) as engine:
            yield engine
        return
    if address is not None:
        raise ValueError("--address is that of a Ray cluster; add --engine ray, or leave it out")
    from pucache.embedding.local_engine import Local

    yield Local(workers)


def refuse_encoding_options(*more: str) -> None:
    """Refuse the options of `encoding`, and others like them, where no images are to be embedded."""
    context = click.get_current_context()
    for name in (*_ENCODING, *more):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is for images that are to be embedded, and none are given; leave it out")


def parse_shard(text: str | None) -> tuple[int, int]:
    """Read I/N."""
    if text is None:
        return 1, 1
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise ValueError(f"--shard expects I/N such as 2/8, got {text!r}")
    from pucache.images.shares import check_shard

    check_shard((int(number), int(count)))
    return int(number), int(count)


twins = click.option(
    "--twins",
    default=0.999,
    show_default=True,
    help="Images with this cosine or more, or with equal bytes, count as the same picture; above 1: equal bytes only.",
)
folds = click.option(
    "--n-folds", default=5, show_default=True, type=click.IntRange(min=2), help="Folds that margins are held out in."
)


def training(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every verb that trains heads."""
    for option in (
        click.option(
            "--epochs", type=click.IntRange(min=1), help="Of --solver sgd.  [default: 100, and at least 3000 steps]"
        ),
        click.option(
            "--solver",
            default="batch",
            show_default=True,
            help="batch trains to convergence; sgd is the published protocol (Adam, batches of 256, 100 epochs).",
        ),
        click.option(
            "--penalty",
            default="auto",
            show_default=True,
            metavar="FLOAT|auto",
            help="L2 penalty relative to the spread of the embeddings; auto: by how held-out positives rank.",
        ),
        click.option("--target-prior", default=0.5, show_default=True, help="Weight of positives in the imb risks."),
        click.option("--surrogate", help="sigmoid or logistic.  [default: sigmoid; logistic for the two bce]"),
        click.option(
            "--loss",
            default="imbupu",
            show_default=True,
            help="Risk to minimise: imbupu, imbnnpu, upu, nnpu, weighted_bce or bce. imb weighs rare positives up; nn "
            "keeps the estimated negative part from going below 0; bce takes the unlabelled for negatives.",
        ),
    ):
        command = option(command)
    return command


def training_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Bring the options of `training` to the form that the library takes."""
    epochs, penalty = parameters.pop("epochs"), parameters.pop("penalty")
    if epochs is not None:
        from pucache.heads.minibatch import Protocol

        if parameters["solver"] != "sgd":
            raise ValueError("--epochs is for --solver sgd; leave it out or choose that solver")
        parameters["protocol"] = Protocol(epochs=epochs, min_steps=0)
    try:
        parameters["penalty"] = penalty if penalty == "auto" else float(penalty)
    except ValueError as error:
        raise ValueError(f"--penalty must be a number >= 0 or auto, got {penalty!r}") from error
    return parameters


def twin_cosine(cosine: float) -> float | None:
    """The cosine as the library takes it."""
    return None if cosine > 1 else cosine
