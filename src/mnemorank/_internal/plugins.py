"""Named parts: formats, templates, losses, loaders register here and are looked up by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from mnemorank.errors import InputError


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """The parts of one kind, by name.

    :param kind: what errors call the part, such as `format`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}

    def add(self, part: T) -> T:
        if part.name in self._parts:
            raise ValueError(f"the {self.kind} {part.name!r} is registered twice")
        self._parts[part.name] = part
        return part

    def __getitem__(self, name: str) -> T:
        try:
            return self._parts[name]
        except (KeyError, TypeError):
            raise InputError(f"unknown {self.kind} {name!r}; there are: {', '.join(sorted(self._parts))}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._parts))


def import_plugins(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that each registers its plugins.

    :param package: the package's `__name__`.
    :param path: the package's `__path__`.
    """
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")
