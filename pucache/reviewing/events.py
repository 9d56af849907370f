"""Server-sent events: what has changed, to every page that listens.

Of an event that a page has not taken yet only the newest data are kept, so that a slow page costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

STREAMS = 4  # per address: a browser has six connections to a server, and needs some for images
ALL_STREAMS = 64
HEARTBEAT = 15.0  # seconds after which a comment shows that the server is there


class Listeners:
    """The event streams that are open."""

    def __init__(self) -> None:
        self._streams: list[_Stream] = []
        self._closed = False

    def tell(self, name: str, data: dict[str, Any]) -> None:
        """Send an event to every stream; from any thread."""
        for stream in list(self._streams):
            with contextlib.suppress(RuntimeError):  # the server has ended
                stream.loop.call_soon_threadsafe(stream.put, name, data)

    def stream(self, address: str, state: Callable[[], dict[str, Any]]) -> AsyncIterator[str] | None:
        """Return the events from now on, the present state first; None where too many streams are open.

        Parameters
        ----------
        address : str
            Of who listens.
        state : callable
            Returns the data of the event "state".
        """
        open_streams = Counter(stream.address for stream in self._streams)
        if self._closed or open_streams[address] >= STREAMS or open_streams.total() >= ALL_STREAMS:
            return None
        return self._events(_Stream(address), state)

    async def _events(self, stream: _Stream, state: Callable[[], dict[str, Any]]) -> AsyncIterator[str]:
        self._streams.append(stream)
        try:
            yield _event("state", await asyncio.to_thread(state))
            while not self._closed:
                for name, data in await stream.take():
                    yield _event(name, data)
        finally:
            self._streams.remove(stream)

    def close(self) -> None:
        """End all streams; within the event loop."""
        self._closed = True
        for stream in self._streams:
            stream.arrived.set()


class _Stream:
    def __init__(self, address: str):
        self.address, self.loop = address, asyncio.get_running_loop()
        self.arrived = asyncio.Event()
        self._waiting: dict[str, dict[str, Any]] = {}

    def put(self, name: str, data: dict[str, Any]) -> None:
        self._waiting[name] = data
        self.arrived.set()

    async def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Newest data by name; a heartbeat where nothing has arrived for a while."""
        try:
            await asyncio.wait_for(self.arrived.wait(), HEARTBEAT)
        except TimeoutError:
            return [("", {})]
        self.arrived.clear()
        taken, self._waiting = self._waiting, {}
        return list(taken.items())


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n" if name else ": here\n\n"
