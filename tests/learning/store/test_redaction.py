import time

import pytest

from mnemorank import InputError
from mnemorank.learning.settings import LearningSettings, PrivacySettings
from mnemorank.learning.store.redaction import Redactor


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
        ("write to jürgen@müller.de or jürgen@example.de", "write to [email] or [email]"),
        ("иван@почта.рф, ju\u0308rgen@example.de, a@xn--mller-kva.xn--p1ai", "[email], [email], [email]"),
        ("请写信给ann@example.com", "请写信给[email]"),
        ("5551234567 or tel:5551234567", "[phone] or tel:[phone]"),
        ("mobile 0151 23456789, office 030/901820, 01512345678", "mobile [phone], office [phone], [phone]"),
        ("555-0123", "[phone]"),
        ("my number is 555-1234.", "my number is [phone]."),
        ("the password is hunter2", "the [key]"),
        ("passwd=abc1", "[key]"),
        ("x-eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM", "x-[key]"),
    ],
)
def test_private_data_is_replaced(text, redacted):
    assert Redactor(PrivacySettings()).redact(text) == redacted


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
        "order number 5551234567, id: 5551234567, #5551234567, at 1700000000",
        "5551234567 USD or $5551234567",
        "on 05032024, from 0930-1745, 500-1500 people, 476-1453",
        "the password is on page 12 and the token is 42",
    ],
)
def test_other_texts_are_unchanged(text):
    assert Redactor(PrivacySettings()).redact(text) == text


def test_patterns_can_be_selected_and_added():
    privacy = PrivacySettings(redact=("email",), patterns={"badge": r"\bB-\d+\b"})
    assert Redactor(privacy).redact("B-12 a@b.org +49 30 901820") == "[badge] [email] +49 30 901820"


def repeat(unit: str):
    return lambda length: (unit * (length // len(unit) + 1))[:length]


WORST_CASES = {
    **{unit: repeat(unit) for unit in ("secret:", "password is ", "-eyJ", "-----BEGIN ", "-----END ", "-sk-", "-hf_")},
    **{unit: repeat(unit) for unit in ("a", "a@1.", "1 ", "(1", "+1", "555-1234 ")},
    "key, then spaces": lambda length: "secret" + " " * length,
    "key, then letters": lambda length: "password: " + "a" * length,
    "token, then letters": lambda length: "-eyJ" * 100 + "aaaaaaaa." + "b" * length,
    "address, then labels": lambda length: "a" * 64 + "@" + "1." * (length // 2),
    "address, then digits": lambda length: "a" * 64 + "@" + "1" * length,
}


def measure_seconds(redactor: Redactor, text: str) -> float:
    started = time.thread_time()
    redactor.redact(text)
    return time.thread_time() - started


@pytest.mark.parametrize("name", WORST_CASES)
def test_time_is_linear_in_the_length_of_a_text(name):
    redactor = Redactor(PrivacySettings())
    assert measure_seconds(redactor, WORST_CASES[name](5_000)) < 0.5
    short = max(min(measure_seconds(redactor, WORST_CASES[name](50_000)) for _ in range(2)), 0.002)
    assert measure_seconds(redactor, WORST_CASES[name](200_000)) / short < 10


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ({"redact": ["emial"]}, "privacy.redact.0"),
        ({"retention_days": 0}, "privacy.retention_days"),
        ({"late_after_days": -1}, "privacy.late_after_days"),
        ({"patterns": {"badge": "("}}, "privacy.patterns.badge"),
    ],
)
def test_invalid_privacy_settings(table, field):
    with pytest.raises(InputError) as error:
        LearningSettings.from_table({"privacy": table})
    assert error.value.field == field
