"""Hardware, versions and commit of a measurement."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parents[2]
PACKAGES = ("torch", "torchvision", "timm", "numpy", "scikit-learn", "h5py", "faiss-gpu", "faiss-cpu", "pillow")


NOT_CODE = (":!docs", ":!tests", ":!*.md")


def commit() -> str:
    """The last commit that changed code, whatever pages and tests have been written since; empty without git."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=HERE, capture_output=True, text=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel") or "/") != HERE.resolve():  # of another project around this one
            return ""
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *NOT_CODE)
        return git("log", "-1", "--format=%h", "--", ".", *NOT_CODE) + "-dirty" * bool(changed)
    except OSError:
        return ""


def environment() -> str:
    """One markdown paragraph."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return (
        f"Measured on {cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {gpu}; "
        f"Python {platform.python_version()}, {', '.join(versions)}; commit {commit() or 'unknown'}."
    )
