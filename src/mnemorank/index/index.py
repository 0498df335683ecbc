"""MemoryIndex: a store of memories that needs no retriever."""

from __future__ import annotations

import logging
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.validation import check_number
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ConflictError, InputError, MnemorankError, NotFoundError, ScorerError
from mnemorank.index.store import Entry, IndexStates, IndexStats, IndexStore, Version, encode
from mnemorank.index.vectors import Vectors
from mnemorank.memory.memory import Memory, MemoryLike, OnError, read_memories
from mnemorank.memory.moment import When
from mnemorank.model.model import Model, readable_query
from mnemorank.model.passages import PassageReader
from mnemorank.model.prepare import not_split, require_states
from mnemorank.options import Options
from mnemorank.reranker import Reranker, check_deadline
from mnemorank.results import Ranking
from mnemorank.scorers.states import Key, State

logger = logging.getLogger(__name__)

Filter = Mapping[str, Any] | Callable[[Memory], bool]

DEFAULT_CANDIDATES = 64
# Memories that are read and written at once; long ones have many passages.
_MEMORIES_AT_ONCE = 32
_CHARACTERS_AT_ONCE = 100_000
_FILTERED_AT_ONCE = 256
# Of reciprocal rank fusion.
_FUSION_K = 60
# Fields of a memory that a filter may name; other names are looked up in its metadata.
_FILTERED_FIELDS = ("id", "type", "context", "speaker")


class MemoryIndex:
    """A store of memories in one file, searched by meaning and by words, and ranked like any other pool.

        with MemoryIndex.open("memories.db") as index:
            index.add(["Ruby works at Aurora Labs.", {"id": "m2", "text": "Ruby plays chess."}])
            for result in index.search("Where does Ruby work?", top_k=5):
                print(f"{result.relevance:.2f}", result.text)

    All embeddings are compared with the query, which is fast up to some 50,000 memories. Safe to share between threads
    and across forks. Any number of processes may search the same file; those that write take turns.
    """

    def __init__(self, store: IndexStore, model: Model, states_model: str, options: Options | None) -> None:
        """Use `MemoryIndex.open` instead."""
        self.model = model
        self._store, self._model_key = store, states_model
        self._reranker = Reranker(model, options=options)
        self._scorer = require_states(model.scorer, model.manifest, "model")
        self._vectors, self._version = Vectors.empty(), Version()
        self._refreshing = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: str | Path = "mini",
        *,
        options: Options | None = None,
        create: bool = True,
        reindex: bool = False,
        **model_options: Any,
    ) -> MemoryIndex:
        """Open an index.

        If another version of its model has read the memories, they are read again first, which takes a while.

        :param path: of the file.
        :param model: a split model: a bundled one, a folder or a Hugging Face Hub id.
        :param options: the defaults for all searches.
        :param create: create the file if it does not exist.
        :param reindex: if the index was made with a model of another name, read all memories again with this one.
        :param model_options: for the model's scorer, such as `threads` and `cache_megabytes`.
        """
        artifact = load_artifact(model)
        if artifact.manifest.family != "split":
            raise not_split(artifact.manifest.name, "model")
        store = IndexStore(path, create=create)
        try:
            name = store.model()
            if name is not None and name != artifact.manifest.name and not reindex:
                message = f"the index was made with {name!r}; open it with that, or read all memories again (reindex)"
                raise ConflictError(message, field="model", code="other_model")
            states_model = artifact.reading_fingerprint
            loaded = Model.load(model, states=IndexStates(store, states_model), **model_options)
            try:
                index = cls(store, loaded, states_model, options)
                if name != artifact.manifest.name:
                    store.set_model(artifact.manifest.name)
                index._read_outdated()
            except BaseException:
                loaded.close()
                raise
        except BaseException:
            store.close()
            raise
        return index

    def add(
        self, memories: Iterable[MemoryLike], *, field: str | None = None, on_error: OnError = "raise"
    ) -> list[str]:
        """Add memories and return their ids. When this returns, they are on disk.

        A memory with the id of another one replaces it. A memory without an id gets one, unless an equal memory is
        there already; then that one's id is returned. First-stage scores are not stored. If the process ends before
        this returns, some of the memories may have been added; adding them again does no harm.

        :param field: the key that holds the text, or a path such as `payload.text`.
        :param on_error: `skip` reports bad dates and numbers instead of raising.
        """
        return self._put(read_memories(memories, field=field, on_error=on_error))

    def update(self, memories: Iterable[MemoryLike], *, field: str | None = None, on_error: OnError = "raise") -> None:
        """Replace memories by their ids. An id that is not in the index is a NotFoundError, and nothing is changed."""
        pool = read_memories(memories, field=field, on_error=on_error)
        known = self._store.digests([memory.id for memory in pool if memory.id is not None])
        for position, memory in enumerate(pool):
            if memory.id is None:
                raise InputError("is required to update a memory", field=f"memories.{position}.id")
            if memory.id not in known:
                raise NotFoundError(f"no memory has the id {memory.id!r:.80}", field=f"memories.{position}.id")
        self._put(pool)

    def delete(self, ids: Iterable[str]) -> int:
        """Delete memories and return how many there were; unknown ids are ignored."""
        if isinstance(ids, str):
            raise InputError("expected a list of ids, got a string", field="ids")
        return self._store.delete(list(dict.fromkeys(ids)))

    def get(self, id: str) -> Memory | None:
        """Return a memory, None if there is none with this id."""
        return self._store.get(id)

    def memories(self) -> Iterator[Memory]:
        """Yield all memories, in the order in which they were added."""
        last = 0
        while seqs := self._store.after(last, _FILTERED_AT_ONCE):
            last = seqs[-1]
            yield from self._store.memories(seqs).values()

    def search(
        self,
        query: str,
        top_k: int | None = 10,
        *,
        now: When | None = None,
        as_of: When | None = None,
        time_range: tuple[When, When] | None = None,
        filter: Filter | None = None,
        instruction: str | None = None,
        deadline_ms: float | None = None,
        explain: bool = False,
        candidates: int = DEFAULT_CANDIDATES,
        options: Options | None = None,
    ) -> Ranking:
        """Return the best memories for a query, ranked as `Reranker.rerank` does.

        :param filter: search only memories with these values, such as `{"type": "event", "session": "s1"}`, or those
            that a function accepts. Names other than id, type, context and speaker are looked up in the metadata.
        :param top_k: how many results to return; None for all candidates.
        :param candidates: how many memories the model scores, at least `top_k`: the best by meaning and by words.
        """
        if deadline_ms is not None:
            check_deadline(deadline_ms)
        return self.search_within(
            None if deadline_ms is None else Deadline.after_ms(deadline_ms),
            query,
            top_k,
            now=now,
            as_of=as_of,
            time_range=time_range,
            filter=filter,
            instruction=instruction,
            explain=explain,
            candidates=candidates,
            options=options,
        )

    def search_within(
        self,
        deadline: Deadline | None,
        query: str,
        top_k: int | None = 10,
        *,
        filter: Filter | None = None,
        candidates: int = DEFAULT_CANDIDATES,
        **arguments: Any,
    ) -> Ranking:
        """Run `search` under a deadline that the caller created, and may cancel. For servers."""
        check_number("candidates", candidates, 1, whole=True)
        if top_k is not None:
            check_number("top_k", top_k, 1, whole=True)
            candidates = max(candidates, top_k)
        candidates = min(candidates, sys.maxsize)
        pool = self._candidates(query, candidates, filter) if isinstance(query, str) and query.strip() else []
        return self._reranker.rerank_within(deadline, query, pool, top_k=top_k, **arguments)

    def __len__(self) -> int:
        return self._store.count()

    def stats(self) -> IndexStats:
        return self._store.stats()

    def close(self) -> None:
        """Release the memory, and close the file."""
        self._reranker.close()
        self._store.close()

    def __enter__(self) -> MemoryIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _put(self, pool: Sequence[Memory]) -> list[str]:
        for position, memory in enumerate(pool):
            try:
                encode(memory)
            except InputError as error:
                raise InputError(error.message, field=f"memories.{position}.{error.field}") from None
        ids: list[str] = []
        for chunk in _chunks(pool):
            # The last of several with one id counts.
            latest: dict[str, tuple[Memory, bytes]] = {}
            for memory in chunk:
                _, digest = encode(memory.with_score(None))
                id = self._id_of(digest, latest) if memory.id is None else memory.id
                latest[id] = replace(memory, id=id, first_stage_score=None), digest
                ids.append(id)
            known = self._store.digests(list(latest))
            self._write(
                [memory for id, (memory, digest) in latest.items() if known.get(id) != (digest, self._model_key)]
            )
        return ids

    def _id_of(self, digest: bytes, latest: Mapping[str, tuple[Memory, bytes]]) -> str:
        """Return the id of an equal memory, or a new one.

        :param latest: the memories that are about to be written, and their digests.
        """
        for id, (_, other) in latest.items():
            if other == digest:
                return id
        stored = self._store.id_of(digest)
        return uuid.uuid4().hex if stored is None or stored in latest else stored

    def _write(self, memories: Sequence[Memory]) -> None:
        """Read memories with the model and store everything in one transaction."""
        if not memories:
            return
        reader = PassageReader.create(self.model.scorer, self.model.manifest, None)
        passages = reader.read(memories)
        states = self._scorer.states([each.passage for each in passages])
        owned: list[dict[Key, State]] = [{} for _ in memories]
        for each, state in zip(passages, states, strict=True):
            owned[each.owner][self._scorer.key(each.passage)] = state
        self._store.put([Entry(*pair) for pair in zip(memories, owned, strict=True)], self._model_key)

    def _read_outdated(self) -> None:
        """Read the memories again that another version of the model has read."""
        last = 0
        while seqs := self._store.outdated(self._model_key, last, _MEMORIES_AT_ONCE):
            if not last:
                logger.warning("%s: the model is new; reading all memories again", self._store.path)
            last = seqs[-1]
            for chunk in _chunks(list(self._store.memories(seqs).values())):
                self._write(chunk)

    def _refresh(self) -> Vectors:
        """Return the embeddings, with the changes of other processes."""
        with self._refreshing:
            self._vectors, self._version, damaged = self._store.refresh(self._vectors, self._version, self._model_key)
            if damaged:
                logger.warning("%s: %d damaged embeddings are computed again", self._store.path, len(damaged))
                try:
                    for chunk in _chunks(list(self._store.memories(list(dict.fromkeys(damaged))).values())):
                        self._write(chunk)
                except MnemorankError as error:
                    logger.warning("%s: they could not be: %s", self._store.path, error)
                else:
                    self._vectors, self._version, _ = self._store.refresh(self._vectors, self._version, self._model_key)
            return self._vectors

    def _candidates(self, query: str, count: int, filter: Filter | None) -> list[Memory]:
        """Return the memories to rank: the best by meaning and by words, in the order of both together."""
        accepts = _as_predicate(filter)
        among = self._possible(filter)
        rankings = [
            dict(islice(self._accepted((seq for seq in seqs if among is None or seq in among), count, accepts), count))
            for seqs in (self._by_meaning(query), self._store.with_words(query, None if accepts else count))
        ]
        scores: dict[int, float] = {}
        for ranking in rankings:
            for rank, seq in enumerate(ranking, 1):
                scores[seq] = scores.get(seq, 0.0) + 1 / (_FUSION_K + rank)
        found = {seq: memory for ranking in rankings for seq, memory in ranking.items()}
        return [found[seq] for seq in sorted(scores, key=lambda seq: -scores[seq])[:count]]

    def _possible(self, filter: Filter | None) -> set[int] | None:
        """Return the only memories that a filter can accept, if that is fast to tell without reading their records."""
        texts = [value for value in filter.values() if isinstance(value, str)] if isinstance(filter, Mapping) else []
        return set(self._store.containing(texts)) if texts else None

    def _by_meaning(self, query: str) -> Iterator[int]:
        vectors = self._refresh()
        if not len(vectors):
            return iter(())
        try:
            return vectors.best_memories(self._scorer.embed_query(readable_query(self.model.scorer, query)))
        except ScorerError as error:  # reported by the ranking, too, which cannot score either
            logger.warning("candidates by words only: %s", error)
            return iter(())

    def _accepted(
        self, seqs: Iterator[int], count: int, accepts: Callable[[Memory], bool] | None
    ) -> Iterator[tuple[int, Memory]]:
        """Yield the memories that the filter accepts, in order. Records are read as far as they are needed."""
        size = count if accepts is None else max(count, _FILTERED_AT_ONCE)
        while some := list(islice(seqs, size)):
            for seq, memory in self._store.memories(some).items():
                if accepts is None or accepts(memory):
                    yield seq, memory


def _chunks(memories: Sequence[Memory]) -> Iterator[Sequence[Memory]]:
    first = characters = 0
    for i, memory in enumerate(memories):
        is_full = i - first == _MEMORIES_AT_ONCE or characters + len(memory.text) > _CHARACTERS_AT_ONCE
        if i > first and is_full:
            yield memories[first:i]
            first, characters = i, 0
        characters += len(memory.text)
    if first < len(memories):
        yield memories[first:]


def _as_predicate(filter: Filter | None) -> Callable[[Memory], bool] | None:
    if filter is None or (isinstance(filter, Mapping) and not filter):
        return None
    if callable(filter):
        return filter
    if not isinstance(filter, Mapping) or not all(isinstance(name, str) for name in filter):
        raise InputError(f"expected a dict of names and values, or a function, got {filter!r:.60}", field="filter")
    wanted = dict(filter)
    return lambda memory: all(value_of(memory, name) == value for name, value in wanted.items())


def value_of(memory: Memory, name: str) -> Any:
    """Return the value of a memory that a filter names; None if it has none."""
    return getattr(memory, name) if name in _FILTERED_FIELDS else memory.metadata.get(name)
