"""pucache: find the positives hidden among unlabelled images, from a few labelled ones.

Every command of the command line is a function here, under the same name. Functions take paths as
strings, or the objects that earlier steps returned::

    cache = pucache.embed("photos/", "cache.h5")
    model = pucache.train_pu(cache, "found.txt")
    ranking = pucache.retrieve_positives(cache, "found.txt", model=model, k=200)
    pucache.score(model, cache, "scores.csv")

Names are imported on first use, so ``import pucache`` loads neither torch nor h5py.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

_HOMES = {
    "EmbeddingCache": "cache.embedding_cache",
    "Encoder": "encoders.encoder",
    "EncoderSpec": "encoders.spec",
    "Decoding": "images.decoding",
    "Labels": "labels.labels",
    "PULabels": "labels.labels",
    "read_labels": "labels.read_labels",
    "write_labels": "labels.read_labels",
    "session_labels": "reviewing.session_labels",
    "PULinearClassifier": "training.sklearn_classifier",
    "load_encoder": "encoders.encoder",
    "open_source": "images.source",
    "embed": "embedding.embed",
    "embed_shards": "scaling.embed_shards",
    "import_embeddings": "cache.importing",
    "pretrain": "pretraining.pretrain",
    "train_pu": "training.train_pu",
    "estimate_prior": "training.estimate_prior",
    "sweep_priors": "training.prior_sweep",
    "retrieve_positives": "retrieval.retrieve",
    "write_review_page": "pages.review_page",
    "review": "reviewing.serve",
    "score": "scoring.score",
    "check_new_images": "scoring.new_images",
    "evaluate": "scoring.evaluate",
    "report": "pages.report",
    "audit": "reviewing.audit",
    "audit_concepts": "reviewing.audit",
    "info": "cache.cache_info",
    "pack": "cache.merging",
    "export": "cache.exporting",
    "verify": "verify_files",
    "cache_dir": "cache.local_copies",
    "demo": "demonstration",
}
__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from .cache.cache_info import info as info
    from .cache.embedding_cache import EmbeddingCache as EmbeddingCache
    from .cache.exporting import export as export
    from .cache.importing import import_embeddings as import_embeddings
    from .cache.local_copies import cache_dir as cache_dir
    from .cache.merging import pack as pack
    from .demonstration import demo as demo
    from .embedding.embed import embed as embed
    from .encoders.encoder import Encoder as Encoder
    from .encoders.encoder import load_encoder as load_encoder
    from .encoders.spec import EncoderSpec as EncoderSpec
    from .images.decoding import Decoding as Decoding
    from .images.source import open_source as open_source
    from .labels.labels import Labels as Labels
    from .labels.labels import PULabels as PULabels
    from .labels.read_labels import read_labels as read_labels
    from .labels.read_labels import write_labels as write_labels
    from .pages.report import report as report
    from .pages.review_page import write_review_page as write_review_page
    from .pretraining.pretrain import pretrain as pretrain
    from .retrieval.retrieve import retrieve_positives as retrieve_positives
    from .reviewing.audit import audit as audit
    from .reviewing.audit import audit_concepts as audit_concepts
    from .reviewing.serve import review as review
    from .reviewing.session_labels import session_labels as session_labels
    from .scaling.embed_shards import embed_shards as embed_shards
    from .scoring.evaluate import evaluate as evaluate
    from .scoring.new_images import check_new_images as check_new_images
    from .scoring.score import score as score
    from .training.estimate_prior import estimate_prior as estimate_prior
    from .training.prior_sweep import sweep_priors as sweep_priors
    from .training.sklearn_classifier import PULinearClassifier as PULinearClassifier
    from .training.train_pu import train_pu as train_pu
    from .verify_files import verify as verify


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
