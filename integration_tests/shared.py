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
_STARTS = 5
STARTED = {OLD: "2023-01", CURRENT: "2024-03"}


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


def started(start: Callable[[], Any]) -> Any:
    """Start a node of Ray, again if it fails: Ray gives a node's agents 15 seconds, too few on a busy machine."""
    for _ in range(_STARTS - 1):
        try:
            return start()
        except Exception as error:  # Ray raises no other type
            print(f"starting the node again: {error}")
    return start()


def add_node(cluster: Any) -> Any:
    """Add a node of one core to a Ray cluster."""
    node = started(lambda: cluster.add_node(num_cpus=1))
    cluster.wait_for_nodes(timeout=600)
    return node


def connect(cluster: Any, nodes: int) -> list[Any]:
    """Add nodes to a Ray cluster, connect to it, and return the nodes."""
    import ray

    added = [add_node(cluster) for _ in range(nodes)]
    ray.init(address=cluster.address, log_to_driver=False)
    return added
