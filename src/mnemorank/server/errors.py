"""What can go wrong with a request, apart from the dialect it is told in."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from mnemorank.errors import MnemorankError


class OverloadedError(MnemorankError):
    """The queue is full.

    :param retry_after: seconds after which there should be room again.
    """

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestCancelledError(MnemorankError):
    """The client went away, or the server stops; nobody waits for the answer."""


class DeadlineError(MnemorankError):
    """The request's time ran out, and its dialect has no way to say that an answer is partial."""


class SwapError(MnemorankError):
    """A new model was refused; the old one stays."""


class Problem(HTTPException):
    """An error answer. Each dialect writes it in its own shape.

    :param code: a word for programs: `invalid`, `empty`, `limit`, `unauthorized`, `overloaded`, …
    :param field: the field of the request that is wrong, such as `documents.3`.
    """

    def __init__(
        self, status: int, code: str, message: str, *, field: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(status, message, {"retry-after": str(retry_after)} if retry_after is not None else None)
        self.code = code
        self.message = message
        self.field = field
