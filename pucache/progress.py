"""How long jobs tell that they are getting on; the command line draws it, the library only reports."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Progress(Protocol):
    """Something that follows a long job; used as a context manager around the job."""

    def start(self, total: int | None, what: str) -> None:
        """A stage of `total` steps (None: it is not known how many), called `what`, begins.

        Parameters
        ----------
        total : int or None
        what : str
        """

    def advance(self, steps: int) -> None:
        """So many more steps are done.

        Parameters
        ----------
        steps : int
        """

    def remark(self, text: str) -> None:
        """Say this beside the progress, instead of what was said before.

        Parameters
        ----------
        text : str
        """

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Follows and says nothing."""

    def start(self, total: int | None, what: str) -> None:
        """Say nothing."""

    def advance(self, steps: int) -> None:
        """Say nothing."""

    def remark(self, text: str) -> None:
        """Say nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None: ...
