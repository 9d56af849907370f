"""Results of slices as JSON lines: what was measured, of which commit, where, and with what."""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.common.environment import PACKAGES, commit, environment
from benchmarks.gpu.checkout import ROOT
from benchmarks.gpu.slices import Bench, Figure, Slice

NAME = "results.jsonl"
SOURCES = ("pucache", "cli", "benchmarks/gpu")


def state() -> str:
    """The commit; in a checkout without git, a digest of the sources."""
    named = commit()
    if named:
        return named
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return f"sources-{digest.hexdigest()[:12]}"


def hardware(device: torch.device) -> dict[str, object]:
    """Processor, memory and GPU."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    facts: dict[str, object] = {"machine": platform.machine(), "cores": os.cpu_count(), "memory, GB": round(memory, 1)}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        facts |= {"gpu": torch.cuda.get_device_name(device), "gpu memory, GB": round(total / 1e9, 1)}
        facts |= {"gpu memory free, GB": round(free / 1e9, 1), "driver": _driver()}
    return facts


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """Of Python, CUDA and the packages that matter to a speed."""
    installed = {"python": platform.python_version(), "cuda": torch.version.cuda or ""}
    for name in (*PACKAGES, "triton"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def row(group: str, done: Slice, figures: list[Figure], bench: Bench, seconds: float) -> dict:
    """One line; n and spread are those of the values of each figure."""
    return {
        "group": group,
        "slice": done.name,
        **of_run(bench),
        "seeds": done.seeds,
        "seconds": round(seconds, 2),
        "figures": [asdict(figure) for figure in figures],
        "hardware": hardware(bench.device),
        "versions": versions(),
        "where": environment(),
    }


def of_run(bench: Bench) -> dict:
    """Commit, device and size: lines that agree in these stand on one page."""
    size = json.loads(json.dumps(asdict(bench.size)))  # tuples become lists, as in a line that was read
    return {"commit": state(), "device": str(bench.device), "size": size}


def read(out: Path, bench: Bench) -> list[dict]:
    """The lines of this commit, device and size."""
    path, wanted = out / NAME, of_run(bench)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in rows if all(line[name] == value for name, value in wanted.items())]


def append(out: Path, measured: dict) -> None:
    with (out / NAME).open("a") as stream:
        stream.write(json.dumps(measured, default=float) + "\n")
