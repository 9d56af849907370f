"""Work on the machines of a Ray cluster (this package and `pucache.embedding.distributed` alone use ray)."""

import os

from pucache.errors import MissingExtraError

# Ray reads these when it is imported: no usage reports, and its processes write to log files only.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
if "RAY_AUTH_TOKEN" in os.environ:  # a token that is set is meant to be used
    os.environ.setdefault("RAY_AUTH_MODE", "token")

MISSING = "the engine ray needs Ray; pip install 'pucache[ray]', or use --engine local"

try:
    import ray  # noqa: F401
except ImportError as missing:
    raise MissingExtraError(MISSING) from missing
