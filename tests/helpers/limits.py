"""Limits that the system sets this process, lowered for a while."""

import resource
from contextlib import contextmanager


@contextmanager
def limited(name, value):
    """Lower a soft limit of this process, such as FSIZE, for a while; not longer, as pytest writes files too."""
    kind = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
