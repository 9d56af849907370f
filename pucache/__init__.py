"""pucache: find the positives hidden among unlabelled images, from a few labelled ones.

Every command of the command line is a function here, and so is what they work on. Each name is
imported on first use, so ``import pucache`` loads neither torch nor h5py.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

_MODULES = {
    "EmbeddingCache": "cache.embedding_cache",
    "EncoderSpec": "encoders.spec",
    "Labels": "pu.labels",
    "PULinearClassifier": "pu.classifier",
    "load_encoder": "encoders.encoder",
    "open_source": "images.source",
}
__all__ = [*_MODULES, "__version__"]

if TYPE_CHECKING:
    from .cache.embedding_cache import EmbeddingCache as EmbeddingCache
    from .encoders.encoder import load_encoder as load_encoder
    from .encoders.spec import EncoderSpec as EncoderSpec
    from .images.source import open_source as open_source
    from .pu.classifier import PULinearClassifier as PULinearClassifier
    from .pu.labels import Labels as Labels


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
