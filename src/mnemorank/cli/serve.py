"""mnemorank serve: the HTTP server."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path

from mnemorank.errors import InputError, MissingExtraError

HELP = "serve reranking over HTTP, in the dialects of Cohere, Jina, TEI and vLLM"
EXAMPLE = "mnemorank serve --port 8000 --model mini"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # The settings need no extra; only the server itself does.
    from mnemorank.server.settings import Settings

    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    for setting in fields(Settings):
        flag = "--" + setting.name.replace("_", "-")
        help_text = str(setting.metadata["help"])
        if setting.type == "bool":
            if setting.default:
                parser.add_argument(
                    flag.replace("--", "--no-"), dest=setting.name, action="store_false", default=None,
                    help=f"do not {help_text}",
                )  # fmt: skip
            else:
                parser.add_argument(flag, dest=setting.name, action="store_true", default=None, help=help_text)
            continue
        shown = "" if setting.default in (None, ()) else f" (default: {setting.default})"
        parser.add_argument(flag, metavar=setting.metadata["metavar"], help=help_text + shown)
    parser.add_argument("--new-key", metavar="NAME", help="make an API key in the file of --keys, print it and exit")
    parser.add_argument(
        "--scopes", default="read", metavar="S,S", help="scopes of the new key: read, feedback, admin (default: read)"
    )
    parser.add_argument("--key-tenant", metavar="NAME", help="bind the new key to a tenant")


def run(arguments: argparse.Namespace) -> int:
    try:
        from mnemorank.server import create_app, runner
        from mnemorank.server import observability as logs
        from mnemorank.server.settings import Settings, read_value
    except MissingExtraError:
        raise
    except ImportError as error:
        raise MissingExtraError(f"serve needs `pip install 'mnemorank[serve]'` ({error})") from error

    given = {setting.name: getattr(arguments, setting.name) for setting in fields(Settings)}
    flags = {name: read_value(name, value) if isinstance(value, str) else value for name, value in given.items()}
    settings = Settings.read(flags, os.environ, arguments.config)
    if arguments.new_key is not None:
        return _make_key(arguments, settings.keys)
    app = create_app(settings)
    listener = runner.listen(settings.host, settings.port)
    logs.configure(settings.log_level)
    app.state.slot.load_first(app.state.catalogue.default())
    port = listener.getsockname()[1]
    logs.announce(settings, port)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"mnemorank serves on http://{host}:{port} (docs at /docs)", file=sys.stderr, flush=True)
    return 0 if runner.run(app, settings, [listener]) else 1


def _make_key(arguments: argparse.Namespace, path: Path | None) -> int:
    from mnemorank.server.auth import add_key

    if path is None:
        raise InputError("--new-key needs --keys FILE, the file that its hash is written to")
    scopes = [scope.strip() for scope in arguments.scopes.split(",") if scope.strip()]
    key = add_key(path, arguments.new_key, scopes, arguments.key_tenant)
    print(key)
    print(f"mnemorank: {path} has its hash; the key itself is shown this once", file=sys.stderr)
    return 0
