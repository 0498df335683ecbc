"""The server: `mnemorank serve`, or `create_app(Settings(...))` under an ASGI server of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnemorank.server.settings import Settings

if TYPE_CHECKING:
    from mnemorank.server.app import create_app

__all__ = ["Settings", "create_app"]


def __getattr__(name: str) -> Any:
    """The app is imported when it is asked for: the command line reads the settings without the `serve` extra."""
    if name == "create_app":
        from mnemorank.server.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
