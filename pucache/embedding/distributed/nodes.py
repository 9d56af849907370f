"""Checks of every node of a cluster before any work."""

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
_CHECKED_PACKAGES = ("torch", "torchvision", "pillow", "timm")  # versions that can change an embedding's last bits


def check_nodes(shipped: ray.ObjectRef, spec: EncoderSpec) -> None:
    """Check pucache, the packages and access to the images on every node.

    Parameters
    ----------
    shipped : ObjectRef of Shipped
    spec : EncoderSpec

    Raises
    ------
    EngineError
        A node lacks pucache or a package of the encoder, has another version of pucache, cannot read the images,
        or does not answer.
    """
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    inspect = _inspection(("openvino", *_CHECKED_PACKAGES) if spec.runtime == "openvino" else _CHECKED_PACKAGES)
    answers = {}
    for node in nodes:
        on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=on_node)(inspect)
        answers[_name(node)] = task.remote([shipped])  # in a list, so that it is unpickled only once pucache is found
    driver = inspect([])
    for name, answer in answers.items():
        _compare(name, _answer(name, answer), driver)


def _inspection(packages: tuple[str, ...]) -> Callable[[list[Any]], dict[str, Any]]:
    """Make a function that a node without pucache can run: Ray pickles it by value, as it is a closure."""

    def inspect(shipped: list[Any]) -> dict[str, Any]:
        import importlib.metadata

        versions: dict[str, Any] = {}
        for name in packages:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                versions[name] = None
        try:
            import pucache

            versions["pucache"] = pucache.__version__
        except ImportError:
            versions["pucache"] = None
            return versions
        if shipped and versions["pucache"] == driver_version:
            from pucache.embedding.distributed.tasks import problem

            versions["problem"] = problem(shipped[0])
        return versions

    driver_version = __version__
    return inspect


def _answer(name: str, answer: ray.ObjectRef) -> dict[str, Any]:
    try:
        return ray.get(answer, timeout=_ANSWER_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise EngineError(f"{name} has not answered for {_ANSWER_SECONDS} s; is it alive, or overloaded?") from error
    except ray.exceptions.RayError as error:
        raise EngineError(f"{name} cannot run pucache: {last_line(error)}") from error


def _compare(name: str, node: dict[str, Any], driver: dict[str, Any]) -> None:
    if node["pucache"] != driver["pucache"]:
        has = f"pucache {node['pucache']}" if node["pucache"] else "no pucache"
        raise EngineError(
            f"{name} has {has}, this machine pucache {driver['pucache']}; install the same version on every node"
        )
    if node.get("problem"):
        raise EngineError(f"{name} {node['problem']}")
    differing = [package for package in driver if node.get(package) != driver[package] and package != "problem"]
    missing = [package for package in differing if node[package] is None]
    if missing:
        raise EngineError(f"{name} lacks {', '.join(missing)}, which the encoder here runs on; install the same there")
    if differing:
        differences = ", ".join(f"{package} {node[package]} (here {driver[package]})" for package in differing)
        log.warning("%s has %s: its embeddings may differ in their last bits", name, differences)


def _name(node: dict[str, Any]) -> str:
    return f"node {node['NodeManagerAddress']} ({node['NodeManagerHostname']}, {node['NodeID'][:8]})"
