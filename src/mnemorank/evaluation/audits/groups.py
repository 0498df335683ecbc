"""Groups of examples that belong together, for splits that do not leak."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from mnemorank.data.records import Example


def fold_of_examples(examples: Sequence[Example], folds: int, *, by_memory: bool = False) -> list[int]:
    """The fold of each example; examples of one group, and those that share a query, are in the same fold.

    :param by_memory: also keep those together that share a memory (mirrored triplets); lists over a common pool would
        then all be one group.
    """
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            key = parents[key]
        return key

    for example in examples:
        own = f"query {example.query}"
        keys = [f"group {example.group}"] if example.group else []
        keys += [f"memory {memory.text}" for memory in example.memories] if by_memory else []
        for key in keys:
            parents[root(key)] = root(own)
    roots = [root(f"query {example.query}") for example in examples]
    return [zlib.crc32(own.encode(errors="surrogatepass")) % folds for own in roots]
