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
    """A parsed address.

    :param url: of the endpoint, without the model.
    """

    dialect: Dialect
    url: SplitResult
    model: str | None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address. Errors do not repeat it, since it may contain a secret."""
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
        """Return the API key from the environment. It is read for every request, so that it can be rotated."""
        for variable in self.dialect.key_variables:
            key = os.environ.get(variable, "").strip()
            if key and not (key.isascii() and key.isprintable()):
                raise ScorerError(f"{variable}: contains characters that are not allowed in an HTTP header")
            if key:
                return key
        return None


def remote_manifest(name: str) -> Manifest:
    """Return the default manifest of a remote model: plain text, no calibration."""
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
        raise ArtifactError(f"{name}: the URL contains a user name or password; set {variable} instead")
    if any(word in key.lower() for key, _ in parse_qsl(url.query) for word in _SECRET_WORDS):
        raise ArtifactError(f"{name}: the query string of the URL seems to contain a key; set {variable} instead")
    try:
        is_valid_port = url.port is None or url.port > 0
    except ValueError:
        is_valid_port = False
    if url.scheme not in ("http", "https") or not url.hostname or not is_valid_port:
        raise ArtifactError(f"{name}: expected an http or https URL with a host, such as http://127.0.0.1:8080")
