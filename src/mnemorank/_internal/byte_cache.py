"""A cache of values used last, bounded by their size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """The values used last. Safe to use from many threads.

    :param max_bytes: the size of all values in it.
    :param size_of: returns the size of a value in bytes.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[V], int]) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._size_of = size_of
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values that are there."""
        found = {}
        with self._lock:
            for key in keys:
                value = self._values.get(key)
                if value is not None:
                    self._values.move_to_end(key)
                    found[key] = value
        return found

    def put(self, values: Mapping[K, V]) -> None:
        """Add values that are not there, except those that are larger than the cache."""
        with self._lock:
            for key, value in values.items():
                size = self._size_of(value)
                if key not in self._values and size <= self.max_bytes:
                    self._values[key] = value
                    self.size += size
            while self.size > self.max_bytes:
                _, dropped = self._values.popitem(last=False)
                self.size -= self._size_of(dropped)
