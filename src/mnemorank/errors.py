"""The exceptions that mnemorank raises.

::

    MnemorankError
    ├── InputError (ValueError)          a query, memory, date, file or option is invalid
    │   ├── QueryTooLongError            the query leaves no room for a memory in the model's input
    │   ├── NotFoundError (LookupError)  no event, version, run, ... of that name
    │   └── ConflictError                the request contradicts the current state
    ├── ArtifactError                    a model folder cannot be used
    ├── ScorerError                      a model failed to score
    ├── StorageError                     the file of an index cannot be read or written
    └── MissingExtraError (ImportError)  an optional dependency is not installed
"""

from __future__ import annotations


class MnemorankError(Exception):
    """Base class of all errors that mnemorank raises on purpose."""


class InputError(MnemorankError, ValueError):
    """A query, memory, date, file or option is invalid.

    :param message: what is wrong, without the name of the field.
    :param field: the argument, option or field at fault, such as `top_k` or `memories.3.occurred_start`.
    :param code: a stable word for programs, such as `invalid`, `empty` or `limit`.
    :param location: the file, or file and line, that the input comes from, such as `memories.jsonl:12`.
    """

    def __init__(
        self, message: str, *, field: str | None = None, code: str = "invalid", location: str | None = None
    ) -> None:
        super().__init__(": ".join(part for part in (location, field, message) if part))
        self.message = message
        self.field = field
        self.code = code
        self.location = location


class NotFoundError(InputError, LookupError):
    """What the request names does not exist."""

    def __init__(self, message: str, *, field: str | None = None, code: str = "not_found") -> None:
        super().__init__(message, field=field, code=code)


class ConflictError(InputError):
    """The request is valid but contradicts the current state, such as a run that is already in progress."""

    def __init__(self, message: str, *, field: str | None = None, code: str = "conflict") -> None:
        super().__init__(message, field=field, code=code)


class QueryTooLongError(InputError):
    """The query leaves no room for a memory in the model's input.

    :param tokens: the length of the query with everything around it, in tokens.
    :param max_tokens: the length of the model's input.
    """

    def __init__(self, tokens: int, max_tokens: int) -> None:
        super().__init__(
            f"its {tokens} tokens leave no room for a memory in the model's input of {max_tokens}; shorten it",
            field="query",
            code="too_long",
        )
        self.tokens = tokens
        self.max_tokens = max_tokens

    def __reduce__(self) -> tuple[type[QueryTooLongError], tuple[int, int]]:
        return type(self), (self.tokens, self.max_tokens)  # worker processes pickle errors


class ArtifactError(MnemorankError):
    """A model folder cannot be used: a file is missing or damaged, the manifest is invalid, or the name is unknown."""


class ScorerError(MnemorankError):
    """A model failed to score. `Reranker.rerank` falls back to the first-stage order instead of raising it."""


class StorageError(MnemorankError):
    """The file of an index cannot be read or written: it is damaged, gone or of another kind, or the disk is full."""


class MissingExtraError(MnemorankError, ImportError):
    """An optional dependency is not installed. The message names the extra to install."""


class ProbeWarning(UserWarning):
    """A model fails on obvious pairs. The message names the likely cause."""
