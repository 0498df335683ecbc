"""The server: `mnemorank serve`, or `create_app(ServerSettings(...))` under an ASGI server of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mnemorank.server.settings import ServerSettings

if TYPE_CHECKING:
    from mnemorank.server.app import create_app

__all__ = ["ServerSettings", "create_app"]


def __getattr__(name: str) -> Any:
    """Import the app when it is used: the command line needs only the settings for its flags."""
    if name == "create_app":
        from mnemorank.server.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
