"""Settings of the server: by flag, environment variable (`MNEMORANK_PORT`) or TOML file, in this order of precedence.

Flags and the options of `mnemorank serve --help` are derived from the fields of `ServerSettings`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from mnemorank._internal.config import input_error, read_toml
from mnemorank.errors import InputError

ENVIRONMENT_PREFIX = "MNEMORANK_"
MAX_DOCUMENTS = 1_000_000


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


# Separated by commas in flags and environment variables, a list in TOML.
_Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


def _setting(default: Any, description: str, metavar: str | None = None, **constraints: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"metavar": metavar}, **constraints)


def _count(default: int | None, description: str, **constraints: Any) -> Any:
    return _setting(default, description, "N", **{"ge": 1, **constraints})


def _seconds(default: float, description: str) -> Any:
    return _setting(default, description, "SECONDS", gt=0, lt=86_400)


class ServerSettings(BaseSettings):
    """All settings. The description of a field is the help text of its flag."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, protected_namespaces=()
    )

    host: str = _setting("127.0.0.1", "address to bind", "H")
    port: int = _setting(8000, "port to bind; 0 picks a free one", "P", ge=0, le=65_535)
    model: str = _setting("mini", "bundled model, model folder or Hugging Face Hub id", "M")
    pipeline: Literal["auto", "full", "model"] = _setting(
        "auto", "ranking on the compatible routes: full, model, or auto for full if documents have dates", "P"
    )
    models_dir: Path | None = _setting(None, "folder of models that may be swapped in by name", "DIR")
    registry: Path | None = _setting(None, "model registry; serve its current version and follow changes", "DIR")
    states: Path | None = _setting(None, "folder of prepared memories, for split models; created if needed", "DIR")
    index: Path | None = _setting(None, "file of a memory index to serve; created if needed", "PATH")
    store: str | None = _setting(None, "database of the feedback log, such as sqlite:///feedback.db", "URL")
    learning: Path | None = _setting(None, "folder of the learning loop, with its own store and registry", "DIR")
    explore: float | None = _setting(
        None,
        "probability of swapping neighbors in logged rankings, up to 0.5 (default: from learning.toml, or 0)",
        "P",
        ge=0,
        le=0.5,
    )
    explore_seed: int | None = _setting(None, "seed of the exploration, for tests", "N")
    threads: int | None = _count(None, "cores to score on (default: all)")
    token_budget: int = _count(512, "padded tokens per batch")
    batching: bool = _setting(True, "share batches between requests")
    score_cache: int | None = _count(None, "number of scores to cache by query and text (default: none)", ge=0)
    queue_pairs: int = _count(20_000, "pairs that may wait before requests get 429")
    max_requests: int = _count(256, "concurrent requests before further ones get 429")
    max_connections: int = _count(1000, "open connections before further ones get 503")
    max_body_bytes: int = _count(32 * 1024 * 1024, "size limit of request bodies")
    max_documents: int = _count(10_000, "documents or memories per request", le=MAX_DOCUMENTS)
    max_document_chars: int = _count(200_000, "characters per document")
    max_query_chars: int = _count(20_000, "characters per query")
    request_timeout: float = _seconds(60.0, "time limit of a request, in seconds")
    read_timeout: float = _seconds(20.0, "time limit for receiving a request body, in seconds")
    swap_timeout: float = _seconds(600.0, "time limit for loading and checking another model, in seconds")
    shutdown_timeout: float = _seconds(30.0, "time for running requests at shutdown, in seconds")
    max_feedback_users: int = _count(1, "users per API key who may give feedback on an event; 1 for the one who asked")
    keys: Path | None = _setting(None, "file of API keys; see --new-key", "FILE")
    no_auth: bool = _setting(False, "serve without API keys on an address that is not loopback")
    cors_origins: _Names = _setting((), "origins of web pages that may call the server, separated by commas", "URL")
    allowed_hosts: _Names = _setting((), "further host names to accept, separated by commas", "NAME")
    console: bool | None = _setting(None, "serve the console at /console (default: only on loopback)")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "debug, info, warning or error", "LEVEL")
    log_texts: bool = _setting(False, "write queries to the log")
    otel: bool = _setting(False, "export OpenTelemetry traces, configured by OTEL_* variables")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise input_error(error, type(self)) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None, file: Path | None = None) -> ServerSettings:
        """Read the settings of a server.

        :param flags: values from the command line; None for flags that were not given.
        :param file: TOML, with the settings at the top level or in a table `serve`.
        """
        table = _read_file(file) if file is not None else {}
        set_flags = {name: value for name, value in (flags or {}).items() if value is not None}
        overrides = {**EnvSettingsSource(cls)(), **set_flags}
        try:
            return cls(**{**table, **overrides})
        except InputError as error:
            name = (error.field or "").partition(".")[0]  # of `cors_origins.1`, the setting
            if name not in table or name in overrides:
                raise
            raise InputError(error.message, field=error.field, code=error.code, location=str(file)) from None

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false for numbers, which pydantic reads as 1 and 0."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation in (int, float, int | None, float | None):
            raise InputError(f"expected a number, got {value!r}")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _check_wildcards(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if "*" in host.removeprefix("*.") and host != "*":
                raise InputError(f"expected a host name, *.example.com or *, got {host!r:.60}")
        return hosts

    @field_validator("models_dir", "registry", "states", "index", "learning", "keys")
    @classmethod
    def _expand_user(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def has_console(self) -> bool:
        return self.is_loopback if self.console is None else self.console

    def check_auth(self) -> None:
        """Raise an error if the server would be open to everyone by accident."""
        if self.keys is not None and self.no_auth:
            raise InputError("cannot be combined with keys", field="no_auth")
        if self.keys is None and not self.no_auth and not self.is_loopback:
            raise InputError(
                f"{self.host} is not loopback and there are no API keys; create one with "
                "`mnemorank serve --keys FILE --new-key NAME`, or pass --no-auth if a proxy authenticates callers",
                field="host",
            )

    def check_folders(self) -> None:
        """Raise an error for a folder that does not exist: a typo, or a volume that is not mounted."""
        for name in ("registry", "models_dir"):
            folder = getattr(self, name)
            if folder is not None and not folder.is_dir():
                raise InputError(f"no such folder: {folder}", field=name, code="not_found")

    def redacted(self) -> dict[str, Any]:
        """Return the settings as JSON values without secrets."""
        store = None if self.store is None else redact_url(self.store)
        return {**self.model_dump(mode="json"), "model": redact_url(self.model), "store": store}


def redact_url(url: str) -> str:
    """Remove user, password and query from a URL; each may hold a secret, with any of `/ ? @` in it."""
    scheme, separator, rest = url.partition("://")
    user, at_sign, location = rest.rpartition("@")
    if not separator:
        return url
    if "?" in user:  # of the password or of the query: ambiguous
        return f"{scheme}{separator}…"
    return f"{scheme}{separator}{'…' if at_sign else ''}{at_sign}{location.partition('?')[0]}"


def _read_file(path: Path) -> dict[str, Any]:
    content = read_toml(path)
    table = content.get("serve", content)
    if not isinstance(table, dict):
        raise InputError(f"expected a table of settings, got {table!r:.60}", field="serve", location=str(path))
    return table
