"""Names and hashes that stay the same from one mining to the next."""

from __future__ import annotations

import hashlib

SEPARATOR = "\x1f"


def named(tenant: str, name: str) -> str:
    """A user's or memory's name within its tenant, as a source."""
    return tenant + SEPARATOR + name


def digest(*parts: str) -> str:
    return hashlib.blake2b(SEPARATOR.join(parts).encode("utf-8", "replace"), digest_size=10).hexdigest()
