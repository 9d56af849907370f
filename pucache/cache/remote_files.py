"""Files of a cache behind a URL: their names, their list, and errors of the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from ..errors import CacheError, PUCacheError
from ..storage.filesystem import open_filesystem, source_errors
from ..storage.retries import error_text, remedy_for
from ..storage.transfer import OBJECT_STORES, folder_files, object_info
from ..storage.urls import without_secrets


def cache_files(fs: Any, path: str, name: str) -> tuple[dict[str, tuple[str, dict[str, Any]]], bool]:
    """List the files of a remote cache.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    path : str
        A file, or a folder of ``.h5`` files.
    name : str
        URL for messages, without secrets.

    Returns
    -------
    files : dict of str to (str, dict)
        File name to path and fsspec's info, sorted by name.
    is_folder : bool

    Raises
    ------
    CacheError
        There is no such file or folder, or the folder holds no cache.
    """
    info = object_info(fs, path)
    if info is None:
        raise CacheError(f"no such cache: {name}; check the URL")
    if info["type"] == "file":
        return {path.rpartition("/")[2]: (path, info)}, False
    files = folder_files(fs, path, ".h5")
    if not files:
        raise CacheError(f"no cache in folder {name}; expected *.h5 files")
    return {file_name: (f"{path.rstrip('/')}/{file_name}", info) for file_name, info in files.items()}, True


def is_remote_cache(url: str) -> bool:
    """Whether a URL is of a ``.h5`` file or a folder of these; raises `SourceError` where the store does not answer."""
    if url.endswith(".h5"):
        return True
    # an archive or a manifest, which some stores read to list it
    if PurePosixPath(without_secrets(url)).suffix and not url.endswith("/"):
        return False
    with source_errors(without_secrets(url)):
        fs, path = open_filesystem(url)
        info = object_info(fs, path)
        return info is not None and info["type"] == "directory" and bool(folder_files(fs, path, ".h5"))


def file_name(url: str) -> str:
    """Name of the file of a URL; raises `ValueError` where the URL names none."""
    scheme, _, rest = without_secrets(url).partition("://")
    folder, _, name = rest.rpartition("/")
    if not name or name in (".", "..") or (scheme in OBJECT_STORES and not folder):
        raise ValueError(f"{without_secrets(url)} names no file; expected a URL such as s3://bucket/folder/cache.h5")
    return name


@contextmanager
def store_errors(kind: type[PUCacheError], verb: str, name: str) -> Iterator[None]:
    """Turn any error of a file system within the block into one of this kind.

    Parameters
    ----------
    kind : type
        Of the error that is raised.
    verb : {"fetch", "read", "write"}
    name : str
        URL for the message, without secrets.
    """
    try:
        yield
    except PUCacheError:
        raise
    except NotImplementedError as error:
        raise kind(f"cannot {verb} {name}: this kind of store does not allow it; name another place") from error
    except Exception as error:
        missing = isinstance(error, FileNotFoundError) and verb == "write"
        remedy = "; make it first, or name another place" if missing else remedy_for(error)
        raise kind(f"cannot {verb} {name}: {error_text(error)}{remedy}") from error
