"""What can go wrong with somebody's files, by name.

Bad arguments raise :class:`ValueError`. Everything that a file, a source or a machine can
do to us raises a child of :class:`PUCacheError`, whose text is one line: the subject, what
was expected, what was found, and the way out.
"""


class PUCacheError(Exception):
    """Base of every error that is about the user's files rather than about a bug."""


class SourceError(PUCacheError):
    """A source of images that cannot be listed or read at all."""


class ImageError(PUCacheError):
    """One image that cannot be read or decoded; its text becomes the recorded reason."""


class EncoderError(PUCacheError):
    """An encoder that is unknown, lacks its weights, or is not the one expected."""


class CacheError(PUCacheError):
    """A cache file that is missing, foreign, damaged, too new, or of another encoder."""


class CacheLockedError(CacheError):
    """A cache that another process is writing."""


class LabelError(PUCacheError, ValueError):
    """Positives or true labels that do not fit the cache they are meant for."""


class ModelError(PUCacheError):
    """A model file that is missing, foreign, damaged, or does not fit the cache."""


class RunError(PUCacheError):
    """A folder of a training run that is of another configuration, damaged or in use, or a training that failed."""


class EngineError(PUCacheError):
    """A cluster that cannot be reached, does not fit, or gave up."""


class OutputError(PUCacheError):
    """An output path that cannot be written."""


class MissingExtraError(PUCacheError):
    """An optional dependency that is not installed; the text holds the install line."""


def one_line(error: BaseException) -> str:
    """What another library's error says, on one line of bounded length."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:300]
