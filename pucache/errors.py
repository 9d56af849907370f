"""Named errors.

Bad arguments raise :class:`ValueError`. Problems with a file, a source or a machine raise a child of
:class:`PUCacheError`, whose text is one line: subject, expected, got, remedy.
"""

from __future__ import annotations

from .storage.urls import without_secrets


class PUCacheError(Exception):
    """Base class of errors about the user's files, as opposed to bugs; its text holds no secrets of URLs."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class SourceError(PUCacheError):
    """A source of images cannot be listed or read at all."""


class ImageError(PUCacheError):
    """One image cannot be read or decoded; the text becomes the recorded reason."""


class EncoderError(PUCacheError):
    """An encoder is unknown, lacks its weights, or is not the expected one."""


class UnknownEncoderError(EncoderError, ValueError):
    """No encoder, and no network of timm, has this name."""


class CacheError(PUCacheError):
    """A cache file is missing, of another format, damaged, too new, or of another encoder."""


class EmbeddingsError(PUCacheError, ValueError):
    """Embeddings are too large to compute with in float32."""


class CacheLockedError(CacheError):
    """Another process is writing the cache."""


class LabelError(PUCacheError, ValueError):
    """Labels or scores cannot be read, or do not fit the cache."""


class MissingColumnError(LabelError):
    """A table lacks the column that the user has named, `column`, or its column of keys is no text."""

    def __init__(self, text: str, column: str = ""):
        super().__init__(text, column)
        self.column = column

    def __str__(self) -> str:
        return without_secrets(str(self.args[0]))


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


class SessionError(PUCacheError):
    """The folder of a review session is damaged, of another cache or version, or cannot be written."""


class SessionLockedError(SessionError):
    """Another process runs the session."""


def one_line(error: BaseException, most: int = 300) -> str:
    """Text of any exception on one line of at most `most` characters, cut after a word, without the secrets of URLs."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    line = without_secrets(" ".join(str(text).split()))
    return line if len(line) <= most else line[: most - 3].rsplit(" ", 1)[0] + "..."


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural where it takes it."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def picklable_error(error: Exception) -> Exception:
    """Return the error without its traceback, or a RuntimeError with its text where it may not be picklable."""
    importable = isinstance(error, PUCacheError) or type(error).__module__ == "builtins"
    if importable and all(isinstance(argument, str | int | bytes) for argument in error.args):
        return type(error)(*error.args)
    return RuntimeError(f"{type(error).__name__}: {error}")
