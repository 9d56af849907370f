"""Names in a folder, and damage to a file."""

import os


def visible(folder):
    """Names in a folder but locks."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


def damage(path, at=-5):
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def snapshot(folder):
    """Content of every file below a folder but locks, which come and stay, by its path."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}
