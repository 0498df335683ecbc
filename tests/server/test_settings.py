"""Settings by flag, environment and file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnemorank.errors import InputError
from mnemorank.server import Settings


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nport = 1\nhost = "::1"\nqueue_pairs = 7\ncors_origins = ["https://a.example"]\n')
    environment = {"MNEMORANK_PORT": "2", "MNEMORANK_QUEUE_PAIRS": "8", "MNEMORANK_LOG_TEXTS": "yes", "OTHER": "x"}
    settings = Settings.read({"port": 3, "host": None}, environment, file)
    assert (settings.port, settings.queue_pairs, settings.host) == (3, 8, "::1")
    assert settings.log_texts is True
    assert settings.cors_origins == ("https://a.example",)


def test_text_values_are_read_by_type():
    environment = {
        "MNEMORANK_KEYS": "~/keys.toml",
        "MNEMORANK_CORS_ORIGINS": "https://a.example, https://b.example",
        "MNEMORANK_BATCHING": "off",
        "MNEMORANK_REQUEST_TIMEOUT": "2.5",
    }
    settings = Settings.read({}, environment)
    assert settings.keys == Path("~/keys.toml").expanduser()
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    assert settings.batching is False
    assert settings.request_timeout == 2.5


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"MNEMORANK_PORT": "http"}, "MNEMORANK_PORT: expected a whole number, got 'http'"),
        ({"MNEMORANK_PORT": "70000"}, "port: expected a number from 0 to 65535"),
        ({"MNEMORANK_BATCHING": "maybe"}, "MNEMORANK_BATCHING: expected true or false"),
        ({"MNEMORANK_MAX_DOCUMENTS": "0"}, "max_documents: expected a whole number from 1"),
        ({"MNEMORANK_REQUEST_TIMEOUT": "-1"}, "request_timeout: expected seconds above 0"),
        ({"MNEMORANK_EXPLORE": "0.9"}, "explore: expected a probability"),
        ({"MNEMORANK_LOG_LEVEL": "loud"}, "log_level: expected debug, info, warning or error"),
    ],
)
def test_bad_values_are_errors_that_name_the_setting(environment, words):
    with pytest.raises(InputError, match=words):
        Settings.read({}, environment)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("prot = 1", "prot: unknown setting; there are: host, port"),
        ("port = true", "port: expected a whole number"),
        ("port = ", "not valid TOML"),
        ("host = 3", "host: expected a string"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_place(tmp_path, content, words):
    file = tmp_path / "serve.toml"
    file.write_text(content)
    with pytest.raises(InputError, match=words):
        Settings.read({}, {}, file)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        Settings.read({}, {}, tmp_path / "none.toml")


def test_secrets_are_not_shown():
    shown = Settings(store="postgresql://me:hush@db.example/feedback").shown()
    assert "hush" not in str(shown)
    assert shown["store"] == "postgresql://…@db.example/feedback"
