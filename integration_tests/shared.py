"""What the tests share: the memories of the README's example, a reranker that tells where it ran, nodes of Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from mnemorank import Ranking, Reranker

QUERY = "Where does Ruby work now?"
OLD = "Ruby joined Zenith as a data engineer."
CAT = "Ruby's cat is called Miso."
CURRENT = "Ruby leads the memory team at Aurora Labs."
# As a retriever might return them, worst first.
TEXTS = (OLD, CAT, CURRENT)
STARTED = {OLD: "2019-09", CURRENT: "2024-03"}


def dates(text: str, name: str = "occurred_start") -> dict[str, str]:
    """Return the metadata of a memory: when it became true, if that is known."""
    return {name: STARTED[text]} if text in STARTED else {}


class Recorder(Reranker):
    """Remembers the sizes of the pools it ranked, and whether it blocked the thread that created it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.creator = threading.get_ident()
        self.sizes: list[int] = []
        self.was_blocking = False

    def rerank(self, query: str, memories: Any, **arguments: Any) -> Ranking:
        memories = list(memories)
        self.sizes.append(len(memories))
        self.was_blocking |= threading.get_ident() == self.creator
        return super().rerank(query, memories, **arguments)


def wait_for(condition: Callable[[], Any], seconds: float = 600) -> None:
    """Wait until a condition holds. The limit is for a condition that never will: a busy machine is slow."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.2)


def connect(cluster: Any, nodes: int) -> list[Any]:
    """Add nodes of one core to a Ray cluster, connect to it, and return the nodes."""
    import ray

    added = [cluster.add_node(num_cpus=1) for _ in range(nodes)]
    cluster.wait_for_nodes(timeout=600)
    ray.init(address=cluster.address, log_to_driver=False)
    return added
