"""`mnemorank mcp`: an agent's memories as MCP tools."""

from __future__ import annotations

import argparse
import ipaddress
from contextlib import ExitStack
from pathlib import Path

from mnemorank.cli.arguments import add_model
from mnemorank.errors import InputError, MissingExtraError

HELP = "serve an agent's memories over the Model Context Protocol"
EXAMPLE = "mnemorank mcp --index ~/memories.jsonl"
DEFAULT_INDEX = "~/.mnemorank/memories.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--index",
        default=DEFAULT_INDEX,
        metavar="PATH",
        help="JSON Lines file of the memories, or a MemoryIndex if it has another suffix; created if it does not exist "
        f"(default: {DEFAULT_INDEX})",
    )
    add_model(parser)
    parser.add_argument(
        "--store", metavar="URL", help="database of the feedback log (default: feedback.db next to the memories)"
    )
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP instead of stdio")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="address for --http (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8001, metavar="P", help="port for --http (default: 8001)")
    parser.add_argument(
        "--no-auth", action="store_true", help="serve --http on an address that is not loopback, for everyone"
    )


def run(arguments: argparse.Namespace) -> None:
    try:
        from mnemorank.learning.settings import PrivacySettings
        from mnemorank.learning.store.events import EventStore
        from mnemorank.mcp.memories import Memories, MemoryFile, is_memory_file
        from mnemorank.mcp.server import create_server
    except ImportError as error:
        raise MissingExtraError(f"mcp needs `pip install 'mnemorank[mcp]'` ({error})") from error
    from mnemorank import MemoryIndex, Reranker

    if arguments.http and not (arguments.no_auth or _is_loopback(arguments.host)):
        message = "is not loopback, and everyone could read the memories; put a proxy that authenticates in front"
        raise InputError(f"{arguments.host} {message}, and pass --no-auth", field="--host")
    path = Path(arguments.index).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if is_memory_file(path):
            reranker = stack.enter_context(Reranker(arguments.model))
            memories: Memories = MemoryFile(path, reranker)
        else:
            memories = stack.enter_context(MemoryIndex.open(path, arguments.model))
            reranker = Reranker(memories.model)
        store_url = arguments.store or f"sqlite:///{path.with_name('feedback.db')}"
        # The memories' texts are next to it already; with them, `mnemorank learn` can use the feedback.
        store = stack.enter_context(EventStore(store_url, PrivacySettings(texts=True)))
        server = create_server(memories, reranker, store)
        if arguments.http:
            server.run("streamable-http", host=arguments.host, port=arguments.port)
        else:
            server.run("stdio")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
