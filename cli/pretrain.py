"""`pucache pretrain`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import click

from . import options, output

_OF_RECIPE = ("epochs", "batch_size", "accumulate", "optimizer", "lr", "temperature", "tau_plus", "n_views", "views")


@click.command()
@click.argument("source")
@click.argument("run_dir")
@click.option(
    "--backbone", default="resnet50", show_default=True, metavar="NAME|bundled", help="Any pooled network of timm."
)
@click.option(
    "--stem",
    default="standard",
    show_default=True,
    type=click.Choice(["standard", "small"]),
    help="small: a first convolution of 3 x 3 that skips no pixel, for images of some 32 to 64 pixels.",
)
@click.option(
    "--size",
    type=click.IntRange(8, 2048),
    help="Side of the views.  [default: that of the RUN_DIR in --weights, else timm's; 32 with a small stem]",
)
@click.option(
    "--weights",
    metavar="FILE|RUN_DIR|hub",
    help="Begin with these instead of random ones; hub: timm's pretrained ones.",
)
@click.option(
    "--recipe",
    default="modern",
    show_default=True,
    type=click.Choice(["modern", "impulses"]),
    help="modern: SGD with warm-up and cosine, batches of 256, 200 epochs. impulses: the authors' Adam at 3e-4, "
    "batches of 128, 100 epochs. The next options change what a recipe says.",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the images.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Images that are compared with each other.")
@click.option(
    "--accumulate",
    type=click.IntRange(min=1),
    help="Parts in which a batch passes the network, to save memory; its images stay each other's negatives.",
)
@click.option("--optimizer", type=click.Choice(["adam", "sgd"]), help="Adam, or descent with momentum 0.9.")
@click.option(
    "--lr",
    type=float,
    help="Learning rate; of sgd for batches of 256, else it grows with their root.  [default: 0.06 of sgd, 0.0003 of "
    "adam]",
)
@click.option("--temperature", type=float, help="tau of the loss.  [default: 0.5]")
@click.option("--tau-plus", type=float, help="Debiasing; 0 is plain SimCLR.  [default: 0.1]")
@click.option("--n-views", type=click.IntRange(min=2), help="Views of each image.  [default: 2]")
@click.option(
    "--views",
    type=click.Choice(["natural", "medical", "overhead", "grey", "impulses"]),
    help="What a view may look like; see --preview.  [default: natural; impulses with that recipe]",
)
@click.option("--preview", metavar="PNG", help="Only draw some images and their views, to look at before training.")
@click.option(
    "--positives", metavar="FILE|GLOB", help="Labelled positives, to tell how good the features are; not trained on."
)
@click.option("--labels", metavar="FILE", help="The same with a CSV key,label of any classes.")
@click.option("--minutes", type=float, default=math.inf, help="Stop after so many; run again to go on.")
@click.option("--save-every", type=float, default=5.0, show_default=True, help="Minutes between checkpoints.")
@click.option(
    "--precision",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "fp32", "bf16"]),
    help="Of the products in the network; auto is bf16 where the processor has it.",
)
@click.option("--compile", "compiled", is_flag=True, help="Train by torch.compile, which takes a while to start.")
@click.option(
    "--decode",
    "decoded",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "once", "always"]),
    help="once: into a file in RUN_DIR; always: in every epoch. auto is once where the disk has room.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    help="Processes that decode once.  [default: one per core, up to 16; 0, for threads, of few images]",
)
@click.option("--tensorboard", is_flag=True, help="Log for TensorBoard too, in RUN_DIR/tensorboard.")
@options.device
@options.seed
@options.strict
@options.as_json
def pretrain(
    source: str, run_dir: str, recipe: str, preview: str | None, seed: int, strict: bool, as_json: bool, **rest: Any
) -> None:
    """Learn an encoder from the images of SOURCE, without labels, into the folder RUN_DIR.

    By debiased SimCLR: views of one image are drawn together, those of different images apart. For
    images unlike those that a ready-made encoder knows. Run it again to go on after an interruption.
    RUN_DIR then is an encoder, for `pucache embed --encoder RUN_DIR`; log.csv in it says how training
    went.

    \b
    pucache pretrain photos/ run --preview views.png
    pucache pretrain photos/ run --backbone resnet18 --positives found.txt
    pucache pretrain tiles/ run --backbone resnet18 --stem small --size 64 --views overhead
    torchrun --nproc-per-node 8 -m pucache pretrain photos/ run       # all processes share each batch
    """
    from pucache.allocator import keep_freed_memory

    keep_freed_memory()  # before the first thread, or large array
    from pucache.images.source import open_source
    from pucache.pretraining import process_group
    from pucache.pretraining.pretrain import Start, show_views
    from pucache.pretraining.pretrain import pretrain as run

    from .progress import terminal_progress

    how = _recipe(recipe, {name: rest.pop(name) for name in _OF_RECIPE})
    start = Start(**{name: rest.pop(name) for name in ("backbone", "stem", "size", "weights")}, seed=seed)
    images = open_source(source)
    if preview is not None:
        shown = show_views(images, preview, start, how)
        output.print_result(
            {"preview": preview, "images": shown}, [f"drew {shown} images and their views: {preview}"], as_json
        )
        return
    try:
        report = run(images, run_dir, start, how, progress=terminal_progress(), **rest)
    except process_group.FailedElsewhereError as error:
        raise click.exceptions.Exit(1) from error  # that process has said it
    if not process_group.speaks():
        return
    result = {
        **{name: value for name, value in dataclasses.asdict(report).items() if name != "folder"},
        "finished": report.steps == report.total,
        "run_dir": run_dir,
    }
    output.print_result(result, list(_lines(report, run_dir)), as_json)
    output.exit_for_failures(len(report.failures), strict)


def _recipe(name: str, changes: dict[str, Any]) -> Any:
    """The recipe of that name, with what is given of the rest."""
    from pucache.pretraining.recipes import RECIPES, USUAL_RATES

    recipe = RECIPES[name]
    changes = {name: value for name, value in changes.items() if value is not None}
    optimizer = changes.get("optimizer", recipe.optimizer)
    if optimizer != recipe.optimizer:  # whose rate would be hundreds of times too high or low
        changes = {"lr": USUAL_RATES[optimizer], **changes}
    return dataclasses.replace(recipe, **changes)


def _lines(report: Any, run_dir: str) -> Any:
    yield f"{run_dir}: {report.steps:,} of {report.total:,} steps on {report.images:,} images, loss {report.loss:.3f}"
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
    for key, reason in list(report.failures.items())[:3]:
        yield f"  failed: {key!r}: {reason}"
    if len(report.failures) > 3:
        yield f"  ... and {len(report.failures) - 3:,} more"
    if report.steps == report.total and not math.isfinite(report.images_per_second):
        yield "it was finished before; nothing was left to do"
    if report.steps < report.total:
        yield "not finished; run the same command again to go on"
    else:
        yield f"next: pucache embed SOURCE cache.h5 --encoder {run_dir}"
