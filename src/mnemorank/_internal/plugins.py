"""Tables of plugins: formats, templates, losses, loaders, audits and more are looked up by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from mnemorank.errors import InputError


class Plugin(Protocol):
    @property
    def name(self) -> str: ...


P = TypeVar("P", bound=Plugin)


class PluginTable(Generic[P]):
    """The plugins of one kind, by name.

    :param kind: what errors call a plugin, such as `format`.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._plugins: dict[str, P] = {}

    def add(self, plugin: P) -> P:
        if plugin.name in self._plugins:
            raise ValueError(f"duplicate {self.kind} {plugin.name!r}")
        self._plugins[plugin.name] = plugin
        return plugin

    def __getitem__(self, name: str) -> P:
        try:
            return self._plugins[name]
        except (KeyError, TypeError):
            expected = ", ".join(sorted(self._plugins))
            raise InputError(f"unknown {self.kind} {name!r}; expected one of {expected}", code="unknown") from None

    def __contains__(self, name: object) -> bool:
        return name in self._plugins

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._plugins))


def import_plugins(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, so that each registers its plugins.

    :param package: the package's `__name__`.
    :param path: the package's `__path__`.
    """
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")
