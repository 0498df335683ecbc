"""ShardedIndex: a MemoryIndex over the machines of a Ray cluster."""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from mnemorank._internal.atomic import write_atomic
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import ConflictError, InputError, MnemorankError, StorageError
from mnemorank.index.index import DEFAULT_CANDIDATES, Filter, MemoryIndex, value_of
from mnemorank.index.store import encode
from mnemorank.memory.memory import Memory, MemoryLike, read_memories
from mnemorank.model.prepare import not_split
from mnemorank.results import Degradation, Ranking, Result

logger = logging.getLogger(__name__)

_SETTINGS = "shards.json"
_MOVED_AT_ONCE = 256


class _Shard:
    """The actor of a shard. If it is lost, Ray starts another one, which opens the same file."""

    def __init__(self, path: str, model: str, threads: int) -> None:
        self._index = MemoryIndex.open(path, model, threads=threads)

    def add(self, memories: Sequence[Memory]) -> None:
        self._index.add(memories)

    def delete(self, ids: Sequence[str]) -> int:
        return self._index.delete(ids)

    def count(self) -> int:
        return len(self._index)

    def search(self, query: str, arguments: dict[str, Any]) -> Ranking:
        return self._index.search(query, **arguments)

    def belonging_to(self, target: str, shards: Sequence[str], partition: str) -> list[Memory]:
        """Return the memories that belong to another shard."""
        return [each for each in self._index.memories() if owner_of(key_of(each, partition), shards) == target]

    def delete_moved(self, own: str, shards: Sequence[str], partition: str) -> int:
        """Delete the memories that belong to other shards."""
        return self._index.delete(
            str(each.id) for each in self._index.memories() if owner_of(key_of(each, partition), shards) != own
        )

    def clear(self) -> int:
        """Delete all memories."""
        return self._index.delete(str(each.id) for each in self._index.memories())


class ShardedIndex:
    """Memories in several files, each with an actor that searches it.

        index = ShardedIndex.open("/shared/memories", model="models/split", shards=4, partition="tenant")
        index.add([{"text": "Ruby works at Aurora Labs.", "tenant": "t1"}])
        ranking = index.search("Where does Ruby work?", filter={"tenant": "t1"})

    A search that names the partition is answered by one shard, exactly as its `MemoryIndex` answers. Any other asks
    all shards: the order of each stays, and the next result is the most relevant of their heads. If a shard does not
    answer, the ranking has those of the others and `degraded` says what is missing.
    """

    def __init__(self, folder: Path, model: str, partition: str, shards: Sequence[str], threads: int) -> None:
        """Use `ShardedIndex.open` instead."""
        self.folder, self.partition = folder, partition
        self._model, self._threads = model, threads
        self._shards = {name: self._start(name) for name in shards}
        self._writing = threading.Lock()  # what is added while memories move could be left behind

    @classmethod
    def open(
        cls,
        folder: str | Path,
        model: str = "mini",
        *,
        shards: int = 2,
        partition: str = "id",
        threads: int = 1,
    ) -> ShardedIndex:
        """Open a sharded index, or create it. Ray must be running.

        :param folder: of the files, which all machines must see under this path.
        :param model: a split model, by a name that all machines know.
        :param shards: how many, for a new index; later ones come with `add_shard`.
        :param partition: what decides on the shard: `id`, or the name of a field of all memories, such as `tenant`.
        :param threads: cores of each shard.
        """
        artifact = load_artifact(model)
        if artifact.manifest.family != "split":  # here, and not in actors that Ray would start again and again
            raise not_split(artifact.manifest.name, "model")
        path = Path(folder).absolute()
        path.mkdir(parents=True, exist_ok=True)
        settings = {"partition": partition, "shards": [f"shard-{number:04d}" for number in range(shards)]}
        if (path / _SETTINGS).exists():
            settings = json.loads((path / _SETTINGS).read_text(encoding="utf-8"))
            if settings["partition"] != partition:
                message = f"the index is partitioned by {settings['partition']!r}"
                raise ConflictError(message, field="partition", code="other_partition")
        elif shards < 1:
            raise InputError(f"expected a whole number from 1, got {shards!r}", field="shards")
        index = cls(path, model, partition, settings["shards"], threads)
        index._save()
        index._delete_moved()  # what an interrupted `add_shard` left
        return index

    @property
    def shards(self) -> list[str]:
        return list(self._shards)

    def add(self, memories: Iterable[MemoryLike], *, field: str | None = None) -> list[str]:
        """Add memories and return their ids. When this returns, they are on disk, whatever is lost then.

        A memory without an id gets one that depends on its content, so adding it again changes nothing. A shard that
        is lost meanwhile is waited for.
        """
        pool = [_with_id(memory.with_score(None)) for memory in read_memories(memories, field=field)]
        keys: list[str] = []
        for position, memory in enumerate(pool):
            try:
                keys.append(key_of(memory, self.partition))
            except InputError as error:
                raise InputError(error.message, field=f"memories.{position}.{error.field}") from None
        with self._writing:
            parts: dict[str, list[Memory]] = {}
            for key, memory in zip(keys, pool, strict=True):
                parts.setdefault(owner_of(key, self.shards), []).append(memory)
            _wait([self._shards[name].add.options(max_task_retries=-1).remote(part) for name, part in parts.items()])
        return [str(memory.id) for memory in pool]

    def delete(self, ids: Iterable[str]) -> int:
        """Delete memories and return how many there were; unknown ids are ignored."""
        if isinstance(ids, str):
            raise InputError("expected a list of ids, got a string", field="ids")
        wanted = list(dict.fromkeys(ids))
        with self._writing:
            calls = [actor.delete.options(max_task_retries=-1).remote(wanted) for actor in self._shards.values()]
            return sum(_wait(calls))

    def search(
        self,
        query: str,
        top_k: int | None = 10,
        *,
        filter: Filter | None = None,
        candidates: int = DEFAULT_CANDIDATES,
        timeout: float | None = None,
        **arguments: Any,
    ) -> Ranking:
        """Return the best memories for a query.

        :param candidates: how many memories each shard scores.
        :param timeout: seconds to wait for shards. Those that do not answer in time are missing.
        :param arguments: further arguments of `MemoryIndex.search`, such as `now`.
        """
        names = self.shards
        if isinstance(filter, dict) and filter.get(self.partition) is not None:
            names = [owner_of(str(filter[self.partition]), names)]
        arguments = {**arguments, "top_k": top_k, "filter": filter, "candidates": candidates}
        calls = {name: self._shards[name].search.remote(query, arguments) for name in names}
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout)
        rankings: list[Ranking] = []
        missing: list[str] = []
        for name, call in calls.items():
            try:
                rankings.append(ray.get(call, timeout=0 if timeout is not None else None))
            except RayTaskError as error:
                raise _cause(error) from None
            except RayError as error:  # the actor, its answer or the time was lost
                logger.warning("%s does not answer: %s", name, type(error).__name__)
                missing.append(name)
        return _merge(rankings, missing, len(self._shards), top_k)

    def add_shard(self) -> str:
        """Add a shard and move its part of the memories to it; nothing else moves. Returns its name.

        Searches continue meanwhile; `add` and `delete` of other threads wait. If this is interrupted, call it again.
        """
        with self._writing:
            names = [*self._shards, name := f"shard-{len(self._shards):04d}"]
            new = self._start(name)
            # What an interrupted call has moved may be outdated by now.
            _wait([new.clear.options(max_task_retries=-1).remote()])
            for actor in self._shards.values():
                belonging_to = actor.belonging_to.options(max_task_retries=-1)
                moved: list[Memory] = _wait([belonging_to.remote(name, names, self.partition)])[0]
                for first in range(0, len(moved), _MOVED_AT_ONCE):
                    _wait([new.add.options(max_task_retries=-1).remote(moved[first : first + _MOVED_AT_ONCE])])
            self._shards[name] = new
            self._save()
            self._delete_moved()
        return name

    def __len__(self) -> int:
        return sum(_wait([actor.count.options(max_task_retries=-1).remote() for actor in self._shards.values()]))

    def close(self) -> None:
        """Stop the actors. The files stay."""
        for actor in self._shards.values():
            ray.kill(actor)

    def __enter__(self) -> ShardedIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, name: str) -> Any:
        actor = ray.remote(num_cpus=self._threads, max_restarts=-1)(_Shard)
        return actor.remote(str(self.folder / f"{name}.db"), self._model, self._threads)

    def _save(self) -> None:
        settings = {"partition": self.partition, "shards": self.shards}
        write_atomic(self.folder / _SETTINGS, json.dumps(settings))

    def _delete_moved(self) -> None:
        tasks = [(name, actor.delete_moved.options(max_task_retries=-1)) for name, actor in self._shards.items()]
        _wait([task.remote(name, self.shards, self.partition) for name, task in tasks])


def owner_of(key: str, shards: Sequence[str]) -> str:
    """Return the shard of a key: the one with the highest hash, so that a new shard takes keys but moves no others."""
    return max(shards, key=lambda shard: hashlib.blake2b(f"{shard}\0{key}".encode(), digest_size=8).digest())


def key_of(memory: Memory, partition: str) -> str:
    value = value_of(memory, partition)
    if value is None:
        raise InputError("is required: it decides on the shard", field=partition)
    return str(value)


def _with_id(memory: Memory) -> Memory:
    return memory if memory.id is not None else replace(memory, id=encode(memory)[1].hex())


def _merge(rankings: Sequence[Ranking], missing: Sequence[str], shards: int, top_k: int | None) -> Ranking:
    degraded = next((ranking.degraded for ranking in rankings if ranking.degraded), None)
    if missing:
        degraded = Degradation("incomplete", f"{', '.join(missing)} of {shards} shards did not answer")
    if len(rankings) == 1:
        return replace(rankings[0], degraded=degraded)
    results: list[Result] = []
    for result in _by_head(rankings):
        score = result.score
        if results and score is not None and results[-1].score is not None:
            score = min(score, math.nextafter(results[-1].score, -math.inf))  # scores follow the order
        results.append(replace(result, index=len(results), rank=len(results) + 1, score=score))
    return Ranking(
        tuple(results[:top_k]),
        abstained=bool(rankings) and all(ranking.abstained or not ranking.results for ranking in rankings),
        degraded=degraded,
        scored_by=next((ranking.scored_by for ranking in rankings if ranking.scored_by), None),
        warnings=tuple(dict.fromkeys(warning for ranking in rankings for warning in ranking.warnings)),
    )


def _by_head(rankings: Sequence[Ranking]) -> Iterator[Result]:
    """Yield the results of all rankings: always the most relevant of those that are next, and no id twice."""
    seen: set[str] = set()
    heads = [(-(ranking[0].relevance or 0.0), number, 0) for number, ranking in enumerate(rankings) if len(ranking)]
    heapq.heapify(heads)
    while heads:
        _, number, position = heapq.heappop(heads)
        ranking = rankings[number]
        result = ranking[position]
        if position + 1 < len(ranking):
            heapq.heappush(heads, (-(ranking[position + 1].relevance or 0.0), number, position + 1))
        if result.memory.id not in seen:  # a memory that is being moved is in two shards
            seen.add(str(result.memory.id))
            yield result


def _wait(calls: Sequence[Any]) -> list[Any]:
    try:
        return list(ray.get(list(calls)))
    except RayTaskError as error:
        raise _cause(error) from None
    except RayError as error:
        raise StorageError(f"a shard was lost and could not be started again: {error}") from error


def _cause(error: RayTaskError) -> BaseException:
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, MnemorankError) else error
