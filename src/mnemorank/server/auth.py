"""API keys: stored as hashes, compared in constant time, each with its scopes."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from mnemorank.errors import InputError
from mnemorank.server.errors import Problem

SCOPES = ("read", "feedback", "admin")
PREFIX = "mnk_"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    :param tenant: whose data the caller may touch; None for all.
    """

    name: str
    scopes: frozenset[str]
    tenant: str | None = None


ANYONE = Caller("anonymous", frozenset(SCOPES))


@dataclass(frozen=True, slots=True)
class Key:
    sha256: str
    caller: Caller


@dataclass(frozen=True, slots=True)
class KeyRing:
    keys: tuple[Key, ...]

    def identify(self, presented: str) -> Caller | None:
        """The caller that a key belongs to. Takes the same time whichever key it is, or none."""
        digest = _digest(presented)
        found = None
        for key in self.keys:
            if hmac.compare_digest(digest, key.sha256):
                found = key.caller
        return found


def read_keys(path: Path) -> KeyRing:
    """Read a key file: TOML, a `[[keys]]` table each with `name`, `sha256`, `scopes` and perhaps `tenant`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    entries = content.get("keys")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path}: has no [[keys]]; make one with `mnemorank serve --keys {path} --new-key NAME`")
    return KeyRing(tuple(_key(entry, f"{path}: key {number}") for number, entry in enumerate(entries, 1)))


def add_key(path: Path, name: str, scopes: Sequence[str] = ("read",), tenant: str | None = None) -> str:
    """Make a key, append its hash to the file (readable by the owner alone) and return the key, which is not kept."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise InputError(f"key name: expected letters, digits, . _ -, at most 64, got {name!r}")
    _check_scopes(scopes, "scopes")
    key = PREFIX + secrets.token_urlsafe(32)
    lines = ["[[keys]]", f'name = "{name}"', f'sha256 = "{_digest(key)}"', f"scopes = {json.dumps(list(scopes))}"]
    if tenant is not None:
        lines.append(f"tenant = {json.dumps(tenant)}")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
    return key


def identify(headers: Mapping[str, str], ring: KeyRing | None) -> Caller:
    """Who sent a request, by `Authorization: Bearer KEY` or `x-api-key: KEY`; anyone where keys are off."""
    if ring is None:
        return ANYONE
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    presented = credentials.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not presented:
        raise Problem(401, "unauthorized", "an API key is required: send Authorization: Bearer KEY")
    caller = ring.identify(presented)
    if caller is None:
        raise Problem(401, "unauthorized", "the API key is not valid")
    return caller


async def caller_of(
    request: Request,
    bearer: Annotated[object, Security(HTTPBearer(auto_error=False, description="An API key"))],
    header: Annotated[object, Security(APIKeyHeader(name="x-api-key", auto_error=False))],
) -> Caller:
    """The dependency behind `requires`. The security schemes are for the OpenAPI; `identify` reads the headers.

    A coroutine, as is `check` below: FastAPI would run a plain function in a thread, for every request.
    """
    caller = identify(request.headers, request.app.state.keys)
    request.state.caller = caller
    return caller


def requires(scope: str) -> Callable[..., Awaitable[Caller]]:
    """A dependency for routes: the caller, if its key has the scope."""

    async def check(caller: Annotated[Caller, Depends(caller_of)]) -> Caller:
        if scope not in caller.scopes:
            raise Problem(403, "forbidden", f"the API key {caller.name!r} lacks the scope {scope!r}")
        return caller

    return check


Reader = Annotated[Caller, Depends(requires("read"))]
Admin = Annotated[Caller, Depends(requires("admin"))]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _check_scopes(scopes: object, where: str) -> None:
    if not isinstance(scopes, (list, tuple)) or not scopes or not all(scope in SCOPES for scope in scopes):
        raise InputError(f"{where}: expected some of {', '.join(SCOPES)}, got {scopes!r:.60}")


def _key(entry: Any, where: str) -> Key:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InputError(f"{where}: name: expected a string")
    digest, tenant = entry.get("sha256"), entry.get("tenant")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise InputError(f"{where}: sha256: expected 64 hexadecimal digits, the SHA-256 of the key")
    if tenant is not None and not isinstance(tenant, str):
        raise InputError(f"{where}: tenant: expected a string")
    _check_scopes(entry.get("scopes"), f"{where}: scopes")
    return Key(digest, Caller(entry["name"], frozenset(entry["scopes"]), tenant))
