"""Named errors.

Bad arguments raise :class:`ValueError`. Problems with a file, a source or a machine raise a child of
:class:`PUCacheError`, whose text is one line: subject, expected, got, remedy.
"""


class PUCacheError(Exception):
    """Base class of errors about the user's files, as opposed to bugs."""


class SourceError(PUCacheError):
    """A source of images cannot be listed or read at all."""


class ImageError(PUCacheError):
    """One image cannot be read or decoded; the text becomes the recorded reason."""


class EncoderError(PUCacheError):
    """An encoder is unknown, lacks its weights, or is not the expected one."""


class CacheError(PUCacheError):
    """A cache file is missing, of another format, damaged, too new, or of another encoder."""


class CacheLockedError(CacheError):
    """Another process is writing the cache."""


class LabelError(PUCacheError, ValueError):
    """Labels or scores cannot be read, or do not fit the cache."""


class ModelError(PUCacheError):
    """A model file is missing, of another format, damaged, or does not fit the cache."""


class RunError(PUCacheError):
    """The folder of a pretraining run is damaged, in use or of another configuration, or its training failed."""


class EngineError(PUCacheError):
    """A Ray cluster cannot be reached, does not fit the job, or failed."""


class OutputError(PUCacheError):
    """An output path cannot be written."""


class MissingExtraError(PUCacheError):
    """An optional dependency is not installed; the text holds the install command."""


def one_line(error: BaseException) -> str:
    """Text of any exception on one line of at most 300 characters."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:300]
