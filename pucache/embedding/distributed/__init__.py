"""Work on many machines (only user of ray)."""

import os

from pucache.errors import MissingExtraError

# Ray reads them when it is imported. Nothing is reported to its makers, and its processes write to log files alone.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
if "RAY_AUTH_TOKEN" in os.environ:  # who has one means to show it
    os.environ.setdefault("RAY_AUTH_MODE", "token")

try:
    import ray.data  # noqa: F401
except ImportError as missing:
    raise MissingExtraError("the engine ray needs Ray; pip install 'pucache[ray]', or use --engine local") from missing
