"""What tells one remote reranking API from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mnemorank._internal.plugins import PluginTable


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a query and the documents to score.

    :param max_length: tokens of a document that the model is to read.
    """

    query: str
    documents: list[str]
    model: str | None
    instruction: str | None = None
    max_length: int = 512


@dataclass(frozen=True, slots=True)
class Dialect:
    """:param path: of the endpoint, where an address names the host alone.
    :param write: the body of a request.
    :param read: index and score of each document in an answer; raises KeyError, TypeError or ValueError on any other
        shape.
    :param key_variables: environment variables that may hold the key, in order.
    :param url: the hosted service, for dialects that have one.
    :param model: asked for where the address names none.
    :param most: documents in one request; larger pools are split.
    :param max_length: tokens that the models are known to read; longer memories are read in windows.
    """

    name: str
    description: str
    path: str
    write: Callable[[Ask], Mapping[str, Any]]
    read: Callable[[Any], Iterable[tuple[int, float]]]
    key_variables: tuple[str, ...]
    url: str | None = None
    model: str | None = None
    most: int = 100
    max_length: int = 512
    score_kind: str = "probability"


dialects: PluginTable[Dialect] = PluginTable("remote dialect")


def indexed(entries: Any, score: str) -> list[tuple[int, float]]:
    """Read `[{"index", SCORE}, …]`, the shape that most answers have."""
    if not isinstance(entries, list):
        raise TypeError(f"expected a list of scores, got {type(entries).__name__}")
    return [(_whole(entry["index"]), _number(entry[score])) for entry in entries]


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"index: expected a whole number, got {value!r:.40}")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"score: expected a number, got {value!r:.40}")
    return float(value)
