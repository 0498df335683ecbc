"""Settings of the server: by flag, environment (`MNEMORANK_PORT`) or TOML file, in this order of precedence."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mnemorank.errors import InputError

ENVIRONMENT_PREFIX = "MNEMORANK_"


def _setting(default: Any, help_text: str, metavar: str | None = None) -> Any:
    return field(default=default, metadata={"help": help_text, "metavar": metavar})


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = _setting("127.0.0.1", "address to bind", "H")
    port: int = _setting(8000, "port to bind; 0 takes a free one", "P")
    model: str = _setting("mini", "bundled model, model folder or hf:org/name", "M")
    models_dir: Path | None = _setting(None, "folder whose models may be swapped in by name", "DIR")
    registry: Path | None = _setting(None, "model registry; its current version is served and followed", "DIR")
    store: str | None = _setting(None, "database of the feedback log, such as sqlite:///feedback.db", "URL")
    learning: Path | None = _setting(None, "folder of the learning loop; brings its own store and registry", "DIR")
    explore: float | None = _setting(
        None, "chance that neighbours change places in logged answers, up to 0.5 (default: learning.toml's, or 0)", "P"
    )
    explore_seed: int | None = _setting(None, "draw the same each time the server is started; for tests", "N")
    threads: int | None = _setting(None, "cores to score on (default: all)", "N")
    token_budget: int = _setting(512, "padded tokens in a batch", "N")
    batching: bool = _setting(True, "share batches between requests")
    score_cache: int | None = _setting(None, "scores to remember by query and text (default: none)", "N")
    queue_pairs: int = _setting(20_000, "pairs that may wait before requests get 429", "N")
    max_requests: int = _setting(256, "requests under way before further ones get 429", "N")
    max_connections: int = _setting(1000, "open connections before further ones get 503", "N")
    max_body_bytes: int = _setting(32 * 1024 * 1024, "largest request body", "N")
    max_documents: int = _setting(10_000, "most documents or memories in a request", "N")
    max_document_chars: int = _setting(200_000, "longest document", "N")
    max_query_chars: int = _setting(20_000, "longest query", "N")
    request_timeout: float = _setting(60.0, "seconds a request may take", "SECONDS")
    read_timeout: float = _setting(20.0, "seconds a client has to send its request", "SECONDS")
    write_timeout: float = _setting(
        30.0, "seconds a client may take nothing of its answer before it is cut off", "SECONDS"
    )
    shutdown_timeout: float = _setting(30.0, "seconds that running requests have at shutdown", "SECONDS")
    keys: Path | None = _setting(None, "file of API keys; see --new-key", "FILE")
    no_auth: bool = _setting(False, "serve without API keys on an address that is not loopback")
    cors_origins: tuple[str, ...] = _setting((), "origins whose web pages may call, separated by commas", "URL")
    allowed_hosts: tuple[str, ...] = _setting((), "further host names that loopback answers to", "NAME")
    log_level: str = _setting("info", "debug, info, warning or error", "LEVEL")
    log_texts: bool = _setting(False, "write queries into the log")
    otel: bool = _setting(False, "send OpenTelemetry spans (configure with OTEL_* variables)")

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            least = 0 if name == "score_cache" else 1
            if value is not None and value < least:
                raise InputError(f"expected a whole number from {least}, got {value}", field=name)
        for name in ("request_timeout", "read_timeout", "write_timeout", "shutdown_timeout"):
            if not 0 < getattr(self, name) < 86_400:
                raise InputError(f"expected seconds above 0, got {getattr(self, name)}", field=name)
        if self.explore is not None and not 0 <= self.explore <= 0.5:
            raise InputError(f"expected a probability from 0 to 0.5, got {self.explore}", field="explore")
        if not 0 <= self.port <= 65_535:
            raise InputError(f"expected a number from 0 to 65535, got {self.port}", field="port")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InputError(f"expected debug, info, warning or error, got {self.log_level!r}", field="log_level")

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check_auth(self) -> None:
        """Refuse to serve strangers by accident."""
        if self.keys is not None and self.no_auth:
            raise InputError("contradicts keys; give one of them", field="no_auth")
        if self.keys is None and not self.no_auth and not self.is_loopback:
            raise InputError(
                f"{self.host} is reachable from outside and there are no API keys; make one with "
                "`mnemorank serve --keys FILE --new-key NAME`, or say --no-auth if something in front checks callers",
                field="host",
            )

    def check_folders(self) -> None:
        """Refuse to pass over a folder that is not there: it is misspelt, or not mounted."""
        for name in ("registry", "models_dir"):
            folder = getattr(self, name)
            if folder is not None and not folder.is_dir():
                raise InputError(f"there is no folder {folder}", field=name)

    def shown(self) -> dict[str, Any]:
        """The settings as JSON values, without secrets."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        return {**values, "model": masked(self.model), "store": masked(self.store) if self.store else None}

    @classmethod
    def read(cls, flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> Settings:
        """:param flags: the values given on the command line; None for those that were not."""
        values = _from_file(file) if file else {}
        for name in (f.name for f in fields(cls)):
            variable = ENVIRONMENT_PREFIX + name.upper()
            if variable in environment:
                values[name] = _read(name, environment[variable], variable)
        values.update({name: value for name, value in flags.items() if value is not None})
        return cls(**values)


_COUNTS = tuple(
    f.name for f in fields(Settings) if f.type in ("int", "int | None") and f.name not in ("port", "explore_seed")
)
_TYPES = {f.name: str(f.type) for f in fields(Settings)}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def masked(address: str) -> str:
    """An address without user, password and query, each of which may hold a secret, and any of `/ ? @` in it."""
    scheme, mark, rest = address.partition("://")
    users, at, place = rest.rpartition("@")
    if not mark:
        return address
    if "?" in users:  # of a password or of the query, there is no telling
        return f"{scheme}{mark}…"
    return f"{scheme}{mark}{'…' if at else ''}{at}{place.partition('?')[0]}"


def read_value(name: str, text: str) -> Any:
    """A setting's value from text, as the command line and the environment give it."""
    return _read(name, text, name)


def _read(name: str, value: object, where: str) -> Any:
    kind = _TYPES[name].removesuffix(" | None")
    try:
        if kind == "bool":
            return _truth(value)
        if kind == "tuple[str, ...]":
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(str(part).strip() for part in parts if str(part).strip())  # type: ignore[attr-defined]
        if isinstance(value, bool):
            raise ValueError
        if kind == "int":
            return int(str(value))
        if kind == "float":
            return float(str(value))
    except (TypeError, ValueError):
        raise InputError(f"{where}: expected {_EXPECTED[kind]}, got {value!r:.60}") from None
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: expected a string, got {value!r:.60}")
    return Path(value).expanduser() if kind == "Path" else value


_EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "tuple[str, ...]": "a list of strings",
}


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in _TRUE:
        return True
    if str(value).lower() in _FALSE:
        return False
    raise ValueError


def _from_file(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    table = content.get("serve", content)
    if not isinstance(table, dict):
        raise InputError(f"{path}: serve: expected a table of settings, got {table!r:.60}")
    unknown = [name for name in table if name not in _TYPES]
    if unknown:
        raise InputError(f"{path}: {unknown[0]}: unknown setting; there are: {', '.join(_TYPES)}")
    return {name: _read(name, value, f"{path}: {name}") for name, value in table.items()}
