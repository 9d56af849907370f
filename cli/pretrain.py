"""`pucache pretrain`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import click

from pucache.allocator import keep_freed_memory
from pucache.errors import counted
from pucache.images.source import open_source
from pucache.storage.file_kinds import PNG

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress

_RECIPE_OPTIONS = "epochs batch_size accumulate lr weight_decay temperature tau_plus views n_views".split()


@options.command("pretrain")
@click.argument("source")
@click.argument("run_dir")
@options.option(
    "--preview",
    metavar="PNG",
    help="Only draw some images, each at the left of its views, into this file, without training.",
)
@options.option("--backbone", default="resnet50", metavar="NAME|bundled", help="Network: any pooled network of timm.")
@options.option(
    "--size",
    type=click.IntRange(8, 2048),
    help="Side of the views in pixels. Up to 64, the first convolution of the network has 3 x 3 pixels and no stride.  "
    "[default: that of the RUN_DIR in --weights, else timm's]",
)
@options.option(
    "--views",
    type=click.Choice(["natural", "medical", "overhead", "grey", "impulses"]),
    help="Set of augmentations; --preview draws them.  [default: natural; impulses with that recipe]",
)
@options.option("--epochs", type=click.IntRange(min=1), help="Number of epochs.  [default: 200; impulses 100]")
@options.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Number of images per batch; images of a batch are each other's negatives.  [default: 256; impulses 128]",
)
@options.option(
    "--positives",
    metavar="FILE|GLOB",
    help="Labelled positives, used to measure the features during training; they are not trained on.",
)
@options.option(
    "--weights",
    metavar="FILE|RUN_DIR|hub",
    help="Initial weights, instead of random ones. hub: the pretrained weights of timm.",
)
@options.option(
    "--minutes", type=float, default=math.inf, show_default=False, help="Stop after so many; run again to go on."
)
@options.as_json
@options.option(
    "--recipe",
    section=options.METHOD,
    default="modern",
    type=click.Choice(["modern", "impulses"]),
    help="modern: SGD with warm-up and cosine. impulses: the authors' Adam, without either. Other options override "
    "single settings of the recipe.",
)
@options.option(
    "--lr",
    section=options.METHOD,
    type=float,
    help="Learning rate. With modern it is that of batches of 256, and scales with the square root of the batch size.  "
    "[default: 0.06; impulses 0.0003]",
)
@options.option(
    "--weight-decay",
    section=options.METHOD,
    type=float,
    help="Weight decay, but for biases and norms.  [default: 0.0001; impulses 0]",
)
@options.option(
    "--n-views", section=options.METHOD, type=click.IntRange(min=2), help="Number of views per image.  [default: 2]"
)
@options.option(
    "--temperature",
    section=options.METHOD,
    type=float,
    help="Temperature of the contrastive loss.  [default: 0.5]",
)
@options.option(
    "--tau-plus",
    section=options.METHOD,
    type=float,
    help="Class prior of the debiased loss; 0 is plain SimCLR.  [default: 0.1]",
)
@options.option(
    "--accumulate",
    section=options.METHOD,
    type=click.IntRange(min=1),
    help="Number of parts in which a batch passes through the network, to save memory. The loss is still that of the "
    "whole batch.  [default: 1]",
)
@options.seed
@options.decoding
@options.option(
    "--precision",
    section=options.MACHINE,
    default="auto",
    type=click.Choice(["auto", "fp32", "bf16"]),
    help="Precision of the matrix products; auto: bf16 where the processor supports it.",
)
@options.option(
    "--workers",
    section=options.MACHINE,
    type=click.IntRange(min=0),
    help="Number of processes that decode images.  [default: one per core, at most 16; for few images 0, which uses "
    "threads]",
)
@options.device
def pretrain(source: str, run_dir: str, recipe: str, preview: str | None, seed: int, **rest: Any) -> None:
    """Learn an encoder from your own images, without labels.

    Method: debiased SimCLR. SOURCE is any that embed reads. Useful where the images differ from those that ready-made
    encoders were trained on. Run the command again to continue after an interruption. The result is an encoder for
    `pucache embed --encoder RUN_DIR`; RUN_DIR/log.csv holds the metrics of training.

    \b
    pucache pretrain photos/ run --preview views.png
    pucache pretrain photos/ run --backbone resnet18 --positives found.txt
    pucache pretrain tiles/ run --backbone resnet18 --size 64 --views overhead
    torchrun --nproc-per-node 8 -m pucache pretrain photos/ run   # share batches
    """
    keep_freed_memory()  # before the first thread, or large array
    if preview is not None:
        check_outputs(("preview", preview, PNG))
    images = open_source(source)
    # these import torch, after what may be refused
    from pucache.pretraining import network, process_group, recipes
    from pucache.pretraining.pretrain import pretrain as run_pretraining
    from pucache.pretraining.pretrain import show_views

    changes = {name: value for name in _RECIPE_OPTIONS if (value := rest.pop(name)) is not None}
    changed_recipe = dataclasses.replace(recipes.RECIPES[recipe], **changes)
    rest["decoding"] = options.decoding_of(rest)
    chosen = network.NetworkConfig(**{name: rest.pop(name) for name in ("backbone", "size", "weights", "decoding")})
    if preview is not None:
        shown = show_views(images, preview, chosen, changed_recipe, seed=seed)
        lines = [f"drew {counted(shown, 'image')} and their views: {preview}"]
        output.print_result({"preview": preview, "images": shown}, lines)
        return
    try:
        report = run_pretraining(
            images, run_dir, chosen, changed_recipe, seed=seed, progress=terminal_progress(), **rest
        )
    except process_group.FailedElsewhereError as error:
        raise click.exceptions.Exit(1) from error  # that process prints the reason
    if not process_group.is_main_process():
        return
    result = dataclasses.asdict(report) | {"finished": report.steps == report.total, "run_dir": run_dir}
    del result["folder"]
    output.print_result(result, _lines(report, run_dir))


def _lines(report: Any, run_dir: str) -> Any:
    steps, images = counted(report.total, "step"), counted(report.images, "image")
    yield f"{run_dir}: {report.steps:,} of {steps} on {images}, loss {report.loss:.3f}"
    if math.isfinite(report.probe):
        before = f"{report.probe_before:.4f}" if math.isfinite(report.probe_before) else "not measured"
        yield f"probe: {report.probe:.4f}, before training {before} ({report.probe_name})"
    yield (
        f"alignment {report.geometry.alignment:.3f}, uniformity {report.geometry.uniformity:.2f}, "
        f"features fill {report.rank:.0f} dimensions"
    )
    if report.collapsed:
        yield "the projections have collapsed: the network tells no images apart"
    if math.isfinite(report.images_per_second):
        yield (
            f"{report.images_per_second:,.0f} images/s, {report.waited:.1%} of the time waiting for images; "
            f"{report.seconds:.0f} s"
        )
    yield from output.failure_lines(report.failures)
    if report.steps == report.total and not math.isfinite(report.images_per_second):
        yield "it was finished before; nothing was left to do"
    if report.steps < report.total:
        yield "not finished; run the same command again to go on"
    else:
        yield f"next: pucache embed SOURCE cache.h5 --encoder {run_dir}"
