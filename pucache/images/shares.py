"""Shares of the images of a source, for processes that know nothing of each other."""

from __future__ import annotations

import zlib

from .source import Listing


def check_shard(shard: tuple[int, int]) -> None:
    """Raise `ValueError` unless (I, N) is a share: 1 <= I <= N."""
    number, count = shard
    if not 1 <= number <= count:
        raise ValueError(f"shard {number}/{count} is not one of 1/{count} to {count}/{count}")


def share(listing: Listing, shard: tuple[int, int]) -> Listing:
    """Return what of a listing belongs to share (I, N)."""
    number, count = shard
    if count == 1:
        return listing

    def mine(key: str) -> bool:  # by a hash of the key, so that a file added later moves no other one
        return zlib.crc32(key.encode()) % count == number - 1

    here = [mine(key) for key in listing.keys]
    # a folder that cannot be listed concerns every share: rows of what lies in it stay
    failures = {key: reason for key, reason in listing.failures.items() if mine(key) or key.endswith("/")}
    keys = [key for key, taken in zip(listing.keys, here, strict=True) if taken]
    return Listing(keys, listing.size_mtime[here], failures, listing.ignored)
