import time

import pytest

from mnemorank import InputError
from mnemorank.learning.privacy import Policy, Redactor


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("write to ann.b+c@mail.example.co.uk, please", "write to [email], please"),
        ("call +49 (0)30 901820 or 004930123456", "call [phone] or [phone]"),
        ("my number: (415) 555-0132.", "my number: [phone]."),
        ("0171 555 1234", "[phone]"),
        ("token ghp_0123456789abcdefghijKLMNOP", "[key]"),
        ("AKIAIOSFODNN7EXAMPLE", "[key]"),
        ("api_key = 'a8f5f167f44f4964e6c998de'", "[key]'"),
        ("my password is hunter2hunter", "my [key]"),
        ("Bearer eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM", "Bearer [key]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- after", "[key] after"),
        ("card 4111 1111 1111 1111", "card [card]"),
    ],
)
def test_private_things_are_replaced(text, redacted):
    assert Redactor(Policy()).text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "Met on 2024-03-05 at 10:30",
        "from 05.03.2024 to 2025",
        "the token is lost and the password policy changed",
        "version 1.22.333 of the app costs 1,250.00",
        "room 12-34, 300 people, year 2019",
        "order 4111 1111 1111 1112 is no card",
        "secret santa in December",
        "an @mention and a #tag",
    ],
)
def test_other_things_stay(text):
    assert Redactor(Policy()).text(text) == text


def test_redaction_can_be_narrowed_and_extended():
    policy = Policy(redact=("email",), patterns={"badge": r"\bB-\d+\b"})
    assert Redactor(policy).text("B-12 a@b.org +49 30 901820") == "[badge] [email] +49 30 901820"


@pytest.mark.parametrize(
    "text", ["a" * 50_000, "1 " * 25_000, "a@" * 25_000, "sk-" * 15_000, "eyJ" * 15_000, "(1" * 25_000]
)
def test_no_text_takes_long(text):
    started = time.perf_counter()
    Redactor(Policy()).text(text)
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"redact": ("emial",)}, "unknown pattern 'emial'"),
        ({"retention_days": 0}, "retention_days"),
        ({"late_after_days": -1}, "late_after_days"),
    ],
)
def test_a_bad_policy_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Policy(**fields)


def test_a_bad_pattern_is_refused():
    with pytest.raises(InputError, match="patterns: badge: not a regular expression"):
        Redactor(Policy(patterns={"badge": "("}))
