"""API keys: stored as hashes, compared in constant time, each with scopes and perhaps a tenant."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from mnemorank._internal.config import read_toml
from mnemorank.errors import InputError
from mnemorank.server.errors import Problem

logger = logging.getLogger(__name__)

SCOPES = ("read", "write", "feedback", "admin")
_CHECK_SECONDS = 1.0
_PREFIX = "mnk_"
_MIN_SECRET_LENGTH = 32
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    :param tenant: the only tenant whose data the caller may access; None for all tenants.
    :param user_secret: with one, the caller may name a user only with a token signed by it; see `sign_user`.
    """

    name: str
    scopes: frozenset[str]
    tenant: str | None = None
    user_secret: str | None = field(default=None, repr=False)


ANONYMOUS = Caller("anonymous", frozenset(SCOPES))


@dataclass(frozen=True, slots=True)
class ApiKey:
    sha256: str
    caller: Caller


@dataclass(frozen=True, slots=True)
class KeyRing:
    keys: tuple[ApiKey, ...]

    def identify(self, key: str) -> Caller | None:
        """Return the caller that a key belongs to, in constant time."""
        digest = _digest(key)
        caller = None
        for known in self.keys:
            if hmac.compare_digest(digest, known.sha256):
                caller = known.caller
        return caller


class KeyFile:
    """The keys of a file, read again when it changes: a key that is removed from the file is refused from then on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._file_state()
        self._ring = read_keys(path)
        self._checked_at = time.monotonic()

    def identify(self, key: str) -> Caller | None:
        """Return the caller that a key belongs to."""
        if time.monotonic() - self._checked_at >= _CHECK_SECONDS:
            self._checked_at = time.monotonic()
            self._read_again()
        return self._ring.identify(key)

    def _read_again(self) -> None:
        state = self._file_state()
        if state == self._state:
            return
        self._state = state
        try:
            self._ring = read_keys(self._path)
        except InputError as error:
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("read %d API keys from %s", len(self._ring.keys), self._path)

    def _file_state(self) -> tuple[int, ...] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def read_keys(path: Path) -> KeyRing:
    """Read a key file: TOML with a table `[[keys]]` for each key, of `name`, `sha256`, `scopes` and maybe `tenant`."""
    entries = read_toml(path).get("keys")
    if not isinstance(entries, list) or not entries:
        message = f"no keys; create one with `mnemorank serve --keys {path} --new-key NAME`"
        raise InputError(message, field="keys", code="empty", location=str(path))
    return KeyRing(tuple(_read_key(entry, f"keys.{i}", path) for i, entry in enumerate(entries)))


def add_key(
    path: Path,
    name: str,
    scopes: Sequence[str] = ("read",),
    tenant: str | None = None,
    user_secret: str | None = None,
) -> str:
    """Create a key, append its hash to the file (readable only by its owner), and return the unhashed key.

    :param user_secret: see `Caller`; stored as it is.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"expected 1 to 64 letters, digits, '.', '_' or '-', got {name!r:.80}", field="name")
    _check_scopes(scopes, "scopes")
    _check_tenant(tenant, "tenant")
    _check_user_secret(user_secret, "user_secret")
    key = _PREFIX + secrets.token_urlsafe(32)
    lines = ["[[keys]]", f'name = "{name}"', f'sha256 = "{_digest(key)}"', f"scopes = {json.dumps(list(scopes))}"]
    if tenant is not None:
        lines.append(f"tenant = {json.dumps(tenant)}")
    if user_secret is not None:
        lines.append(f"user_secret = {json.dumps(user_secret)}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n\n")
    except OSError as error:
        raise InputError(f"could not be written: {error.strerror or error}", field=str(path)) from None
    return key


def identify(headers: Mapping[str, str], keys: KeyFile | None) -> Caller:
    """Return the sender of a request by `Authorization: Bearer KEY` or `x-api-key: KEY`; anonymous without keys."""
    if keys is None:
        return ANONYMOUS
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    key = credentials.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not key:
        raise Problem(401, "unauthorized", "an API key is required: send Authorization: Bearer KEY")
    caller = keys.identify(key)
    if caller is None:
        raise Problem(401, "unauthorized", "the API key is not valid")
    return caller


async def authenticate(
    request: Request,
    bearer: Annotated[object, Security(HTTPBearer(auto_error=False, description="An API key"))],
    header: Annotated[object, Security(APIKeyHeader(name="x-api-key", auto_error=False))],
) -> Caller:
    """Return the caller. The security schemes are for OpenAPI; `identify` reads the headers.

    A coroutine, like `check` below: FastAPI would run a plain function in a thread for every request.
    """
    caller = identify(request.headers, request.app.state.keys)
    request.state.caller = caller
    return caller


def requires(scope: str) -> Callable[..., Awaitable[Caller]]:
    """Return a dependency for routes that gives the caller if its key has the scope."""

    async def check(caller: Annotated[Caller, Depends(authenticate)]) -> Caller:
        if scope not in caller.scopes:
            raise Problem(403, "forbidden", f"the API key {caller.name!r} lacks the scope {scope!r}")
        return caller

    return check


Reader = Annotated[Caller, Depends(requires("read"))]
Admin = Annotated[Caller, Depends(requires("admin"))]


def resolve_tenant(caller: Caller, tenant: str | None) -> str | None:
    """Return the tenant of a request: that of the key, else the one in the request.

    :param tenant: from the request; must not differ from that of the key.
    """
    if caller.tenant is None:
        return tenant
    if tenant not in (None, caller.tenant):
        raise Problem(403, "forbidden", "tenant: differs from the tenant of the API key", field="tenant")
    return caller.tenant


def new_user_secret() -> str:
    return secrets.token_urlsafe(32)


def sign_user(user_secret: str, user: str, valid_seconds: float = 3600.0) -> str:
    """Return a token by which the server knows that a user is not invented.

    Call it where your users are authenticated, and give them the token; they send it as `x-user-token`.
    """
    expires = str(int(time.time() + valid_seconds))
    return f"{expires}.{_signature(user_secret, expires, user)}"


def check_user(caller: Caller, user: str | None, headers: Mapping[str, str]) -> None:
    """Raise a problem if the caller may name users only with a token, and there is no valid one."""
    if caller.user_secret is None or user is None:
        return
    expires, _, signature = headers.get("x-user-token", "").partition(".")
    expected = _signature(caller.user_secret, expires, user)
    is_valid = hmac.compare_digest(signature.encode(), expected.encode()) and expires.isdecimal()
    if not is_valid or int(expires) < time.time():
        message = "this API key needs a valid x-user-token for the user; see docs/guides/serving.md"
        raise Problem(403, "invalid_user_token", f"user: {message}", field="user")


def _signature(user_secret: str, expires: str, user: str) -> str:
    content = f"{expires}.{user}".encode("utf-8", "surrogatepass")
    return hmac.new(user_secret.encode(), content, hashlib.sha256).hexdigest()


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _read_key(entry: Any, field: str, path: Path) -> ApiKey:
    location = str(path)
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InputError("expected a string", field=f"{field}.name", location=location)
    digest, tenant = entry.get("sha256"), entry.get("tenant")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        message = "expected 64 hexadecimal digits, the SHA-256 of the key"
        raise InputError(message, field=f"{field}.sha256", location=location)
    _check_tenant(tenant, f"{field}.tenant", location)
    _check_user_secret(entry.get("user_secret"), f"{field}.user_secret", location)
    _check_scopes(entry.get("scopes"), f"{field}.scopes", location)
    return ApiKey(digest, Caller(entry["name"], frozenset(entry["scopes"]), tenant, entry.get("user_secret")))


def _check_scopes(scopes: object, field: str, location: str | None = None) -> None:
    if not isinstance(scopes, (list, tuple)) or not scopes or not all(scope in SCOPES for scope in scopes):
        raise InputError(f"expected some of {', '.join(SCOPES)}, got {scopes!r:.60}", field=field, location=location)


def _check_tenant(tenant: object, field: str, location: str | None = None) -> None:
    """Refuse an empty tenant, which looks like a restriction but would not be one."""
    if tenant is not None and not (isinstance(tenant, str) and tenant.strip()):
        raise InputError(f"expected a non-empty string, got {tenant!r:.60}", field=field, location=location)


def _check_user_secret(secret: object, field: str, location: str | None = None) -> None:
    if secret is not None and not (isinstance(secret, str) and len(secret) >= _MIN_SECRET_LENGTH):
        message = f"expected a string of at least {_MIN_SECRET_LENGTH} characters"
        raise InputError(message, field=field, location=location)
