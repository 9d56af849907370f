"""Running command lines in this process, on a small world of images."""

import csv
import json
import re
import shlex

import numpy as np
import safetensors.torch
import timm
import torch
from click.testing import CliRunner
from PIL import Image

from pucache.cli.main import main

ENCODER = "test_convnext"
ANY_RUNTIME = f" --encoder timm:{ENCODER} --weights {{w}}/weights.safetensors --device cpu "
SMALL = f"{ANY_RUNTIME}--runtime torch "  # OpenVINO takes seconds to compile a network
LABELLED, HIDDEN, REST = 8, 8, 44
BROKEN = "rest/broken.jpg"


def run(command, code=0, **places):
    """Run one command line; {name} in it stands for places[name]."""
    arguments = [part.format(**places) for part in shlex.split(command)]
    ended = CliRunner().invoke(main, arguments, prog_name="pucache")
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == code, f"{arguments} gave {ended.exit_code}: {ended.stderr}"
    return ended


def printed(command, code=0):
    """Run one command line; gives what stands on stdout, or all that is said where it is to fail."""
    ended = run(command, code)
    return ended.output if code else ended.stdout


def run_json(command, **places):
    """Run with --json; what stands on stdout must be JSON as any parser knows it."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(run(f"{command} --json", **places).stdout, parse_constant=refuse)


def refused(command, code=1, **places):
    """Run what must fail; gives the one line on stderr."""
    ended = run(command, code, **places)
    assert ended.stdout == "" and re.fullmatch(r"Error: .{10,800}\n", ended.stderr), ended.output
    told = ended.stderr
    verbs = [verb for verb in main.commands if verb == command.split()[0] or re.search(rf"\b{verb}\b", told)]
    known = {option for verb in verbs for taken in main.commands[verb].params for option in taken.opts}
    advised = re.findall(r"--[a-z][a-z-]*", told.partition("; ")[2])
    assert known >= set(advised), f"{told} names options that {verbs} lack"
    return told


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def save_world(folder):
    """Write red images hidden among blue ones, one that is broken, labels, true classes, and weights of a network."""
    draw = np.random.default_rng(0)
    save_images(folder / "images" / "red", LABELLED + HIDDEN, (220, 40, 40), draw)
    save_images(folder / "images" / "rest", REST, (40, 60, 200), draw)
    (folder / "images" / BROKEN).write_bytes(b"no image")
    (folder / "images" / "notes.docx").write_bytes(b"")
    torch.manual_seed(0)
    safetensors.torch.save_file(timm.create_model(ENCODER).state_dict(), folder / "weights.safetensors")
    keys = [f"red/{number:03}.png" for number in range(LABELLED + HIDDEN)]
    (folder / "positives.txt").write_text("\n".join(keys[:LABELLED]) + "\n")
    rest = [f"rest/{number:03}.png,0" for number in range(REST)]
    (folder / "truth.csv").write_text("\n".join(["key,label", *(f"{key},1" for key in keys), *rest]) + "\n")
    return folder


def save_images(folder, count, colour, draw, endings=("png",)):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        save_picture(folder / f"{number:03}.{endings[number % len(endings)]}", colour, draw)


def save_picture(path, colour, draw):
    pixels = draw.normal(colour, 40, (12, 12, 3)).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)
