import ctypes
import os
import sys
from types import SimpleNamespace

import pytest

from pucache.allocator import keep_freed_memory


@pytest.mark.parametrize("settings, calls", [({}, 3), ({"MALLOC_ARENA_MAX": "2"}, 0), ({"GLIBC_TUNABLES": ""}, 0)])
def test_freed_memory_is_kept_unless_the_user_set_malloc(monkeypatch, settings, calls):
    asked = []
    monkeypatch.setattr(os, "environ", {"HOME": "/", **settings})
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(
        ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *setting: asked.append(setting) or 1)
    )
    keep_freed_memory.__wrapped__()
    assert len(asked) == calls
