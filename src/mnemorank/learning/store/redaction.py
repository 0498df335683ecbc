"""What may be stored, and in what form: redaction before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.scorers.encoding import clean

_LETTER = r"A-Za-z0-9\u00c0-\u0dff\u1e00-\u1fff"  # of scripts that put spaces between words
# Order matters: keys before numbers, so that the digits of a key are not taken for a telephone. Every run that could
# begin at many places is bounded: the time is linear in the length of a text, whatever it holds.
PATTERNS: Mapping[str, str] = {
    "key": (
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
        r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"
        r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"
        r"|\bhf_[A-Za-z0-9]{20,}|\bxox[abpros]-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
        r"|\bAIza[A-Za-z0-9_-]{30,}"
        r"|(?:(?<![\w-])eyJ[A-Za-z0-9_-]{8,}|(?<=-)eyJ[A-Za-z0-9_-]{8,400})\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
        r"|(?i:\bpass(?:wor[dt]|wd)\b\s{0,8}(?:[:=]|\bis\b)\s{0,8}[\"']?)(?=[^\s\"',;]{0,64}\d)[^\s\"',;]{4,}"
        r"|(?i:\b(?:api[_-]?key|secret|token|passwor[dt]|passwd|bearer)\b\s{0,8}(?:[:=]|\bis\b)?\s{0,8}[\"']?)"
        r"(?=[^\s\"']{0,64}\d)[^\s\"',;]{8,}"
    ),
    "email": (
        rf"[{_LETTER}._%+-]{{1,64}}@[{_LETTER}-]{{1,63}}(?:\.[{_LETTER}-]{{1,63}}){{0,8}}"
        rf"\.(?:xn--[a-z0-9-]{{2,59}}|[^\W\d_]{{2,63}})"
    ),
    "card": r"(?<![\w.-])(?:\d[ -]?){12,18}\d(?![\w-])",
    "phone": (
        r"(?<![\w.-])(?:\+|00)\d(?:[ ().-]{0,2}\d){6,14}(?!\w)"
        r"|(?<![\w.-])\(?\d{2,5}\)?(?:[ .-]\d{2,5}){2,4}(?![\w-])"
        r"|(?<![\w.,/-])(?P<bare>[2-9]\d{9}|0[1-9]\d{8,10}|0[1-9]\d{1,3}[ /-]\d{5,8}|[2-9]\d{2}-\d{4})"
        r"(?![\w/-]|[.,:]\d)"
    ),
}
# A look that is much cheaper than the pattern, and never misses what the pattern would find.
_KEY_SIGNS = (
    "-----begin", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_",
    "glpat-", "hf_", "xox", "akia", "asia", "aiza", "eyj", "key", "secret", "token", "passwor", "passwd", "bearer",
)  # fmt: skip
_DIGIT = re.compile(r"\d")
_DATE = re.compile(r"\d{4}[-./ ]\d{1,2}[-./ ]\d{1,2}|\d{1,2}[-./ ]\d{1,2}[-./ ]\d{4}")
# What tells a number without a country code from an id, a price or a range: the words beside it.
_BESIDE = 40
_ID_BEFORE = re.compile(
    r"[$€£¥#] ?$|\b(?:id|isbn|issn|sku|order|invoice|ticket|case|issue|article|part|serial|tracking|build)"
    r"(?: ?(?:number|no|nr|id))?[\s.:=#]{0,3}$",
    re.IGNORECASE,
)
_PRICE_AFTER = re.compile(r" ?(?:[$€£¥%]|(?:USD|EUR|GBP|JPY|dollars?|euros?|pounds?|yen)\b)", re.IGNORECASE)
_CALL_BEFORE = re.compile(
    r"\b(?:call|dial|ring|text|reach|phone|telephone|tel|mobile|cell|fax|number|extension)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the store keeps.

    :param texts: keep the texts of shown memories. Off by default; without them mining needs a lookup by memory id.
    :param queries: keep the texts of queries.
    :param redact: which of the built-in PATTERNS are applied to every text before it is written.
    :param patterns: more patterns, name → regular expression; a match becomes `[name]`.
    :param retention_days: events older than this are deleted; None keeps them.
    :param late_after_days: signals later than this after their event do not count.
    :param test_tenants: tenants whose traffic is test traffic.
    """

    texts: bool = False
    queries: bool = True
    redact: tuple[str, ...] = tuple(PATTERNS)
    patterns: Mapping[str, str] = field(default_factory=dict)
    retention_days: float | None = 365.0
    late_after_days: float = 30.0
    test_tenants: tuple[str, ...] = ("test",)

    def __post_init__(self) -> None:
        unknown = set(self.redact) - set(PATTERNS)
        if unknown:
            raise InputError(
                f"unknown pattern {min(unknown)!r}; there are: {', '.join(sorted(PATTERNS))}", field="redact"
            )
        for name, days in (("retention_days", self.retention_days), ("late_after_days", self.late_after_days)):
            if days is not None and not days > 0:
                raise InputError(f"expected a number above 0, got {days!r}", field=name)


class Redactor:
    """Replaces what a policy forbids by a word that says what stood there."""

    def __init__(self, policy: Policy) -> None:
        self._patterns = [(name, re.compile(PATTERNS[name], re.DOTALL)) for name in PATTERNS if name in policy.redact]
        for name, pattern in policy.patterns.items():
            try:
                self._patterns.append((name, re.compile(pattern)))
            except re.error as error:
                raise InputError(f"{name}: not a regular expression: {error}", field="patterns") from None

    def text(self, text: str) -> str:
        text = storable(text)
        for name, pattern in self._patterns:
            if name not in PATTERNS or _may_hold(name, text):
                text = pattern.sub(partial(_replacement, name), text)
        return text

    def maybe(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def memory(self, memory: Memory) -> Memory:
        """The memory with its words redacted and without metadata, of which nothing is known."""
        changes: dict[str, Any] = {"text": self.text(memory.text)}
        if memory.context or memory.speaker or memory.entities or memory.metadata:
            changes["context"] = self.maybe(memory.context)
            changes["speaker"] = self.maybe(memory.speaker)
            changes["entities"] = tuple(self.text(name) for name in memory.entities)
            changes["metadata"] = {}
        is_same = len(changes) == 1 and changes["text"] == memory.text
        return memory if is_same else replace(memory, **changes)


def storable(text: str) -> str:
    """The text without what a database refuses: lone surrogates and NUL."""
    return text if text.isascii() and "\0" not in text else clean(text).replace("\0", "\ufffd")


def _may_hold(name: str, text: str) -> bool:
    if name == "email":
        return "@" in text
    if name == "key":
        lowered = text.lower()
        return any(sign in lowered for sign in _KEY_SIGNS)
    return len(_DIGIT.findall(text)) >= 7


def _replacement(name: str, match: re.Match[str]) -> str:
    found = match[0]
    if name == "phone" and (_DATE.fullmatch(found) or not 7 <= sum(map(str.isdigit, found)) <= 15):
        return found  # 2024-03-05 looks like a number to dial
    if name == "phone" and match["bare"] and not _is_dialled(match):
        return found
    if name == "card" and not _passes_luhn(found):
        return found
    return f"[{name}]"


def _is_dialled(match: re.Match[str]) -> bool:
    """Whether a number without a country code is a telephone's, by the words beside it."""
    before = match.string[max(match.start() - _BESIDE, 0) : match.start()]
    if _ID_BEFORE.search(before) or _PRICE_AFTER.match(match.string, match.end()):
        return False
    is_range = len(match[0]) == len("500-1500") and match[0][4] != "0"
    return not is_range or _CALL_BEFORE.search(before) is not None


def _passes_luhn(text: str) -> bool:
    digits = [int(character) for character in reversed(text) if character.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0
