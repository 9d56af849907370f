"""What every node of a cluster must have, asked before any work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...encoders.spec import EncoderSpec
from ...errors import EngineError
from ...version import __version__
from .cluster import last_line

log = logging.getLogger("pucache")

_ANSWER_SECONDS = 120  # the first task on a node starts a process there, and imports torch
_MATTER = ("torch", "torchvision", "pillow", "timm")  # versions that can change an embedding's last bits


def check_nodes(shipped: ray.ObjectRef, spec: EncoderSpec) -> None:
    """Ask every node for its pucache, its packages, and whether it sees the images.

    Parameters
    ----------
    shipped : ObjectRef of Shipped
    spec : EncoderSpec

    Raises
    ------
    EngineError
        A node lacks pucache or what the encoder runs on, has another version, does not see the images, or does
        not answer.
    """
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    ask = _asking(("openvino", *_MATTER) if spec.runtime == "openvino" else _MATTER)
    answers = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=there)(ask)
        answers[_name(node)] = asked.remote([shipped])  # in a list: it is opened there, once pucache is found
    here = ask([])
    for name, answer in answers.items():
        _compare(name, _answer(name, answer), here)


def _asking(packages: tuple[str, ...]) -> Callable[[list[Any]], dict[str, Any]]:
    """A function that Ray sends whole, as it is defined in another: a node without pucache can run it too."""

    def ask(shipped: list[Any]) -> dict[str, Any]:
        import importlib.metadata

        found: dict[str, Any] = {}
        for name in packages:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = None
        try:
            import pucache

            found["pucache"] = pucache.__version__
        except ImportError:
            found["pucache"] = None
            return found
        if shipped and found["pucache"] == driver:
            from pucache.embedding.distributed.tasks import problem

            found["problem"] = problem(shipped[0])
        return found

    driver = __version__
    return ask


def _answer(name: str, answer: ray.ObjectRef) -> dict[str, Any]:
    try:
        return ray.get(answer, timeout=_ANSWER_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise EngineError(f"{name} has not answered for {_ANSWER_SECONDS} s; is it alive, or overloaded?") from error
    except ray.exceptions.RayError as error:
        raise EngineError(f"{name} cannot run pucache: {last_line(error)}") from error


def _compare(name: str, there: dict[str, Any], here: dict[str, Any]) -> None:
    if there["pucache"] != here["pucache"]:
        has = f"pucache {there['pucache']}" if there["pucache"] else "no pucache"
        raise EngineError(
            f"{name} has {has}, this machine pucache {here['pucache']}; install the same version on every node"
        )
    if there.get("problem"):
        raise EngineError(f"{name} {there['problem']}")
    differing = [package for package in here if there.get(package) != here[package] and package != "problem"]
    missing = [package for package in differing if there[package] is None]
    if missing:
        raise EngineError(f"{name} lacks {', '.join(missing)}, which the encoder here runs on; install the same there")
    if differing:
        told = ", ".join(f"{package} {there[package]} (here {here[package]})" for package in differing)
        log.warning("%s has %s: its embeddings may differ in their last bits", name, told)


def _name(node: dict[str, Any]) -> str:
    return f"node {node['NodeManagerAddress']} ({node['NodeManagerHostname']}, {node['NodeID'][:8]})"
