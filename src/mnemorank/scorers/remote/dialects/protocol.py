"""What distinguishes one remote reranking API from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mnemorank._internal.plugins import PluginTable


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A query and the documents to score.

    :param max_length: how many tokens of a document the model should read.
    """

    query: str
    documents: list[str]
    model: str | None
    instruction: str | None = None
    max_length: int = 512


@dataclass(frozen=True, slots=True)
class Dialect:
    """A reranking API.

    :param path: of the endpoint, for addresses that name only a host.
    :param write: returns the body of a request.
    :param read: returns index and score of each document in a response; raises KeyError, TypeError or ValueError if the
        response has a different shape.
    :param key_variables: environment variables that may hold the API key, in order of precedence.
    :param url: of the hosted service, if there is one.
    :param model: the default model.
    :param max_documents: in one request; larger pools are split.
    :param max_length: tokens that the models read; longer memories are read in windows.
    """

    name: str
    description: str
    path: str
    write: Callable[[RerankRequest], Mapping[str, Any]]
    read: Callable[[Any], Iterable[tuple[int, float]]]
    key_variables: tuple[str, ...]
    url: str | None = None
    model: str | None = None
    max_documents: int = 100
    max_length: int = 512
    score_kind: str = "probability"


dialects: PluginTable[Dialect] = PluginTable("remote dialect")


def read_entries(entries: Any, score: str) -> list[tuple[int, float]]:
    """Read `[{"index": …, SCORE: …}, …]`, the form that most responses have.

    :param score: the key of the score.
    """
    if not isinstance(entries, list):
        raise TypeError(f"expected a list of scores, got {type(entries).__name__}")
    return [(_index(entry["index"]), _score(entry[score])) for entry in entries]


def _index(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"index: expected a whole number, got {value!r:.40}")
    return value


def _score(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"score: expected a number, got {value!r:.40}")
    return float(value)
