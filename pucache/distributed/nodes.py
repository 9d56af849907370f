"""Checks of every node of a cluster before any work."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..errors import EngineError
from ..version import __version__
from .failures import last_line

log = logging.getLogger("pucache")

_ANSWER_SECONDS = 120  # the first task on a node starts a process there, and imports torch


def check_nodes(problem: Callable[[], str], packages: Sequence[str], *, results: str) -> None:
    """Check pucache, packages and access to the data on every node.

    Parameters
    ----------
    problem : callable
        Called on each node: returns the reason why the node cannot do the work, "" where it can. Its module is
        imported only where the node has the same pucache.
    packages : sequence of str
        Packages whose versions can change the last bits of the results.
    results : str
        What is computed, such as "embeddings", for a warning.

    Raises
    ------
    EngineError
        A node lacks pucache or one of the packages, has another version of pucache, has a problem, or does not
        answer.
    """
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    inspect, shipped = _inspection(tuple(packages)), ray.put(problem)
    answers = {}
    for node in nodes:
        on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, max_retries=3, scheduling_strategy=on_node)(inspect)
        answers[_name(node)] = task.remote([shipped])  # in a list, so that it is unpickled only once pucache is found
    driver = inspect([])
    for name, answer in answers.items():
        _compare(name, _answer(name, answer), driver, results)


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
            import ray

            versions["problem"] = ray.get(shipped[0])()
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


def _compare(name: str, node: dict[str, Any], driver: dict[str, Any], results: str) -> None:
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
        raise EngineError(f"{name} lacks {', '.join(missing)}, which this machine has; install the same there")
    if differing:
        differences = ", ".join(f"{package} {node[package]} (here {driver[package]})" for package in differing)
        log.warning("%s has %s: its %s may differ in their last bits", name, differences, results)


def _name(node: dict[str, Any]) -> str:
    return f"node {node['NodeManagerAddress']} ({node['NodeManagerHostname']}, {node['NodeID'][:8]})"
