"""Loaders of public benchmarks. To add one, add a module here that calls `loaders.add(Loader(...))`."""

from mnemorank._internal.plugins import import_plugins
from mnemorank.data.benchmarks.loader import Loader, loaders

import_plugins(__name__, __path__)

__all__ = ["Loader", "loaders"]
