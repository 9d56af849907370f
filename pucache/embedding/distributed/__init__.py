"""The engine of many machines: images are dealt out by Ray Data."""

from pucache.distributed import MISSING
from pucache.errors import MissingExtraError

try:
    import ray.data  # noqa: F401
except ImportError as missing:
    raise MissingExtraError(MISSING) from missing
