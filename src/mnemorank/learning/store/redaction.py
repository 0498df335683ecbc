"""Remove keys, e-mail addresses, card numbers and phone numbers from texts before they are stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from mnemorank.learning.settings import PrivacySettings, RedactionPattern
from mnemorank.memory.memory import Memory
from mnemorank.scorers.encoding import clean

_LETTER = r"A-Za-z0-9\u00c0-\u0dff\u1e00-\u1fff"  # letters of scripts that separate words by spaces
# Order matters: keys come before numbers, so that the digits of a key are not taken for a phone number. Repetitions
# that could start at many places are bounded, which keeps the time linear in the length of the text.
PATTERNS: Mapping[RedactionPattern, str] = {
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
# One of these occurs in every match of the key pattern. Searching for them is much cheaper than the pattern.
_KEY_MARKERS = (
    "-----begin", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_",
    "glpat-", "hf_", "xox", "akia", "asia", "aiza", "eyj", "key", "secret", "token", "passwor", "passwd", "bearer",
)  # fmt: skip
_DIGIT = re.compile(r"\d")
_DATE = re.compile(r"\d{4}[-./ ]\d{1,2}[-./ ]\d{1,2}|\d{1,2}[-./ ]\d{1,2}[-./ ]\d{4}")
# The words around a number without a country code tell a phone number from an id, a price or a range.
_CONTEXT_CHARACTERS = 40
_ID_BEFORE = re.compile(
    r"[$€£¥#] ?$|\b(?:id|isbn|issn|sku|order|invoice|ticket|case|issue|article|part|serial|tracking|build)"
    r"(?: ?(?:number|no|nr|id))?[\s.:=#]{0,3}$",
    re.IGNORECASE,
)
_PRICE_AFTER = re.compile(r" ?(?:[$€£¥%]|(?:USD|EUR|GBP|JPY|dollars?|euros?|pounds?|yen)\b)", re.IGNORECASE)
_CALL_BEFORE = re.compile(
    r"\b(?:call|dial|ring|text|reach|phone|telephone|tel|mobile|cell|fax|number|extension)\b", re.IGNORECASE
)


class Redactor:
    """Replaces private parts of a text by a placeholder such as `[email]`."""

    def __init__(self, privacy: PrivacySettings) -> None:
        self._patterns: list[tuple[str, re.Pattern[str]]] = [
            (name, re.compile(pattern, re.DOTALL)) for name, pattern in PATTERNS.items() if name in privacy.redact
        ]
        self._patterns += [(name, re.compile(pattern)) for name, pattern in privacy.patterns.items()]

    def redact(self, text: str) -> str:
        text = clean_text(text)
        for name, pattern in self._patterns:
            if name not in PATTERNS or _may_match(name, text):
                text = pattern.sub(partial(_replacement, name), text)
        return text

    def redact_optional(self, text: str | None) -> str | None:
        return None if text is None else self.redact(text)

    def redact_memory(self, memory: Memory) -> Memory:
        """Redact all texts of a memory, and drop its metadata, whose content is unknown."""
        changes: dict[str, Any] = {"text": self.redact(memory.text)}
        if memory.context or memory.speaker or memory.entities or memory.metadata:
            changes["context"] = self.redact_optional(memory.context)
            changes["speaker"] = self.redact_optional(memory.speaker)
            changes["entities"] = tuple(self.redact(name) for name in memory.entities)
            changes["metadata"] = {}
        is_unchanged = len(changes) == 1 and changes["text"] == memory.text
        return memory if is_unchanged else replace(memory, **changes)


def clean_text(text: str) -> str:
    """Replace what databases reject: lone surrogates and NUL."""
    return text if text.isascii() and "\0" not in text else clean(text).replace("\0", "\ufffd")


def _may_match(name: str, text: str) -> bool:
    if name == "email":
        return "@" in text
    if name == "key":
        lowered = text.lower()
        return any(marker in lowered for marker in _KEY_MARKERS)
    return len(_DIGIT.findall(text)) >= 7


def _replacement(name: str, match: re.Match[str]) -> str:
    matched = match[0]
    if name == "phone" and (_DATE.fullmatch(matched) or not 7 <= sum(map(str.isdigit, matched)) <= 15):
        return matched  # 2024-03-05 looks like a phone number
    if name == "phone" and match["bare"] and not _is_phone_number(match):
        return matched
    if name == "card" and not _passes_luhn(matched):
        return matched
    return f"[{name}]"


def _is_phone_number(match: re.Match[str]) -> bool:
    """Decide by the surrounding words whether a number without a country code is a phone number."""
    before = match.string[max(match.start() - _CONTEXT_CHARACTERS, 0) : match.start()]
    if _ID_BEFORE.search(before) or _PRICE_AFTER.match(match.string, match.end()):
        return False
    is_range = len(match[0]) == len("500-1500") and match[0][4] != "0"
    return not is_range or _CALL_BEFORE.search(before) is not None


def _passes_luhn(text: str) -> bool:
    digits = [int(character) for character in reversed(text) if character.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0
