"""Routes, one dialect a file. To add one: write a module with a `router` and add its name here.

A module may also have `ERRORS`, a mapping of its paths to the function that writes their error bodies; other paths get
the native shape, `{"error": {"code", "message", "field"}}`.
"""

from __future__ import annotations

ROUTES: tuple[str, ...] = ("cohere", "jina", "tei", "vllm", "memories", "admin", "docs", "feedback", "learning")
