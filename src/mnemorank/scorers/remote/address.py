"""The address of a remote model: `dialect:URL#model`, or `dialect:model` for a hosted service."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

from mnemorank.artifact.manifest import Manifest
from mnemorank.errors import ArtifactError, InputError, ScorerError
from mnemorank.scorers.remote.dialects import Dialect, dialects

_SECRET_WORDS = ("key", "token", "secret", "password", "signature")


@dataclass(frozen=True, slots=True)
class Address:
    """:param url: of the endpoint, without the model."""

    dialect: Dialect
    url: SplitResult
    model: str | None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Errors never repeat the address, in case a secret is in it."""
        name, _, rest = text.partition(":")
        try:
            dialect = dialects[name]
        except InputError as error:
            raise ArtifactError(str(error)) from None
        if "://" not in rest:
            if dialect.url is None:
                raise ArtifactError(f"{name}: expected a URL, such as {name}:http://127.0.0.1:8080")
            rest = f"{dialect.url}#{rest}" if rest else dialect.url
        url = urlsplit(rest)
        _check_url(url, name, dialect)
        path = dialect.path if url.path in ("", "/") else url.path
        return cls(dialect, url._replace(path=path, fragment=""), url.fragment or dialect.model)

    def key(self) -> str | None:
        """From the environment at every request, so that a renewed key is taken up; kept nowhere."""
        for variable in self.dialect.key_variables:
            key = os.environ.get(variable, "").strip()
            if key and not (key.isascii() and key.isprintable()):
                raise ScorerError(f"{variable}: holds characters that cannot be sent in a header")
            if key:
                return key
        return None


def is_remote(name: object) -> bool:
    """Whether a model's name is a remote address."""
    return isinstance(name, str) and ":" in name and name.partition(":")[0] in dialects


def remote_manifest(name: str) -> Manifest:
    """What holds for a remote model that is named by its address alone: text as it is, no calibration."""
    address = Address.parse(name)
    return Manifest(
        name=name,
        family="remote",
        score_kind=address.dialect.score_kind,
        max_length=address.dialect.max_length,
        base=name,
    )


def _check_url(url: SplitResult, name: str, dialect: Dialect) -> None:
    variable = dialect.key_variables[0]
    if url.username is not None or url.password is not None:
        raise ArtifactError(f"{name}: the URL carries a user or password; put the key in {variable} instead")
    if any(word in key.lower() for key, _ in parse_qsl(url.query) for word in _SECRET_WORDS):
        raise ArtifactError(f"{name}: the URL's query seems to carry a key; put it in {variable} instead")
    try:
        port_fits = url.port is None or url.port > 0
    except ValueError:
        port_fits = False
    if url.scheme not in ("http", "https") or not url.hostname or not port_fits:
        raise ArtifactError(f"{name}: expected an http or https URL with a host, such as http://127.0.0.1:8080")
