"""Dialects of remote rerankers, one API per file. To add one, write a file like `tei.py` in this folder."""

from mnemorank._internal.plugins import import_plugins
from mnemorank.scorers.remote.dialects.protocol import Dialect, RerankRequest, dialects

__all__ = ["Dialect", "RerankRequest", "dialects"]

import_plugins(__name__, __path__)
