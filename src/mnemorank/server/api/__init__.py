"""Routes, one API dialect per module. To add one, write a module with a `router` and add its name here.

A module may also define `ERRORS`, a mapping from its paths to the function that writes their error bodies. Other paths
use the native format, `{"error": {"code", "message", "field"}}`.
"""

from __future__ import annotations

ROUTES: tuple[str, ...] = (
    "cohere",
    "jina",
    "tei",
    "vllm",
    "memories",
    "index",
    "admin",
    "docs",
    "feedback",
    "learning",
    "console",
)
