"""Progress of long jobs: the library reports it, the command line draws it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a long job; used as a context manager around the job."""

    def start(self, total: int | None, what: str) -> None:
        """Begin a stage of the job, called `what`, of `total` steps; None where their number is unknown."""

    def advance(self, steps: int) -> None:
        """Report steps that were completed since the last call."""

    def remark(self, text: str) -> None:
        """Show a text beside the progress, in place of the previous one."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """A `Progress` that shows nothing."""

    def start(self, total: int | None, what: str) -> None:
        """Do nothing."""

    def advance(self, steps: int) -> None:
        """Do nothing."""

    def remark(self, text: str) -> None:
        """Do nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None: ...
