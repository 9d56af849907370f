"""pucache: find the positives hidden among unlabelled images, from a few labelled ones."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Nouns, resolved on first use so that `import pucache` stays free of torch, timm and h5py.
# The verbs are functions of the modules of the same name: `from pucache.embed import embed`.
_HOME = {
    "EmbeddingCache": "cache",
    "EncoderSpec": "encoder_spec",
    "Labels": "labels",
    "PULinearClassifier": "classifier",
    "load_encoder": "encoders",
    "open_source": "images",
}
__all__ = [*_HOME, "__version__"]

if TYPE_CHECKING:
    from .cache import EmbeddingCache as EmbeddingCache
    from .classifier import PULinearClassifier as PULinearClassifier
    from .encoder_spec import EncoderSpec as EncoderSpec
    from .encoders import load_encoder as load_encoder
    from .images import open_source as open_source
    from .labels import Labels as Labels


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
