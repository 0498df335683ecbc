"""`mnemorank serve`: run the HTTP server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mnemorank.errors import InputError, MissingExtraError

HELP = "serve reranking over HTTP, compatible with Cohere, Jina, Voyage, TEI and vLLM"
EXAMPLE = "mnemorank serve --port 8000 --model mini"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    try:
        from mnemorank.server.settings import ServerSettings
    except ImportError:
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        return  # the other commands work without the extra; `run` says what is missing
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    for name, setting in ServerSettings.model_fields.items():
        flag, description = "--" + name.replace("_", "-"), setting.description or ""
        if setting.annotation is bool and setting.default:
            flag, description = flag.replace("--", "--no-"), f"do not {description}"
            parser.add_argument(flag, dest=name, action="store_false", default=None, help=description)
        elif setting.annotation == bool | None:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=description)
        elif setting.annotation is bool:
            parser.add_argument(flag, dest=name, action="store_true", default=None, help=description)
        else:
            default = "" if setting.default in (None, ()) else f" (default: {setting.default})"
            extra = setting.json_schema_extra
            metavar = extra["metavar"] if isinstance(extra, dict) else None
            parser.add_argument(flag, metavar=str(metavar), help=description + default)
    parser.add_argument("--new-key", metavar="NAME", help="create an API key in the file of --keys, print it and exit")
    parser.add_argument(
        "--scopes",
        default="read",
        metavar="S,S",
        help="scopes of the new key: read, write, feedback, admin (default: read)",
    )
    parser.add_argument("--key-tenant", metavar="NAME", help="bind the new key to a tenant")
    parser.add_argument(
        "--sign-users",
        action="store_true",
        help="let the new key name users only with a signed token; prints the secret",
    )


def run(arguments: argparse.Namespace) -> int:
    try:
        from mnemorank.server import ServerSettings, create_app, observability, runner
        from mnemorank.server.lifespan import open_index
    except MissingExtraError:
        raise
    except ImportError as error:
        raise MissingExtraError(f"serve needs `pip install 'mnemorank[serve]'` ({error})") from error

    flags = {name: getattr(arguments, name) for name in ServerSettings.model_fields}
    settings = ServerSettings.load(flags, arguments.config)
    if arguments.new_key is not None:
        return _create_key(arguments, settings.keys)
    app = create_app(settings)
    listener = runner.listen(settings.host, settings.port)
    observability.configure_logging(settings.log_level)
    app.state.slot.load_first(app.state.catalog.default())
    open_index(app)
    port = listener.getsockname()[1]
    observability.log_start(settings, port)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    pages = "console at /console, docs at /docs" if settings.has_console else "docs at /docs"
    print(f"mnemorank serves on http://{host}:{port} ({pages})", file=sys.stderr, flush=True)
    return 0 if runner.run(app, settings, [listener]) else 1


def _create_key(arguments: argparse.Namespace, path: Path | None) -> int:
    from mnemorank.server.auth import add_key, new_user_secret

    if path is None:
        raise InputError("required by --new-key: the file to write the hash of the key to", field="--keys")
    scopes = [scope.strip() for scope in arguments.scopes.split(",") if scope.strip()]
    user_secret = new_user_secret() if arguments.sign_users else None
    key = add_key(path, arguments.new_key, scopes, arguments.key_tenant, user_secret)
    print(key)
    if user_secret is not None:
        print(user_secret)
        print("mnemorank: the second line is the secret that signs users; see `sign_user`", file=sys.stderr)
    print(f"mnemorank: its hash was added to {path}; the key itself is shown only once", file=sys.stderr)
    return 0
