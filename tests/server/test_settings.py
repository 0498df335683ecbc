"""ServerSettings by flag, environment and file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnemorank.errors import ArtifactError, InputError
from mnemorank.server import ServerSettings, create_app
from mnemorank.server.observability import JsonFormatter


def test_flags_come_before_the_environment_and_that_before_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nport = 1\nhost = "::1"\nqueue_pairs = 7\ncors_origins = ["https://a.example"]\n')
    environment = {"MNEMORANK_PORT": "2", "MNEMORANK_QUEUE_PAIRS": "8", "MNEMORANK_LOG_TEXTS": "yes", "OTHER": "x"}
    settings = ServerSettings.read({"port": 3, "host": None}, environment, file)
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
    settings = ServerSettings.read({}, environment)
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
        ServerSettings.read({}, environment)


def test_a_seed_may_be_any_number_and_no_cache_is_a_cache_of_none():
    settings = ServerSettings.read({}, {"MNEMORANK_EXPLORE_SEED": "0", "MNEMORANK_SCORE_CACHE": "0"})
    assert (settings.explore_seed, settings.score_cache) == (0, 0)
    assert ServerSettings(explore_seed=-3).explore_seed == -3
    with pytest.raises(InputError, match="score_cache: expected a whole number from 0, got -1"):
        ServerSettings(score_cache=-1)


@pytest.mark.parametrize(
    ("given", "explored"),
    [({}, (0.25, 7)), ({"explore": 0.0, "explore_seed": 0}, (0.0, 0)), ({"explore": 0.5}, (0.5, 7))],
)
def test_what_is_stated_comes_before_learning_toml(tmp_path, tiny_settings, given, explored):
    (tmp_path / "learning.toml").write_text("explore = 0.25\nexplore_seed = 7\n")
    state = create_app(tiny_settings(learning=tmp_path, **given)).state
    state.learning.close()
    assert (state.settings.explore, state.settings.explore_seed) == explored


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
        ServerSettings.read({}, {}, file)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        ServerSettings.read({}, {}, tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://me:hush@db.example/feedback", "postgresql://…@db.example/feedback"),
        ("postgresql://me:hu/sh@db.example/feedback", "postgresql://…@db.example/feedback"),
        ("postgresql://me:hu@sh@db.example/feedback", "postgresql://…@db.example/feedback"),
        ("postgresql://me:hu?sh@db.example/feedback", "postgresql://…"),
        ("postgresql://db.example/feedback?user=me&password=hush", "postgresql://db.example/feedback"),
        ("postgresql://db.example/feedback?password=hu@sh", "postgresql://…"),
        ("postgresql://me:hush@db.example/feedback?password=hush#sh", "postgresql://…@db.example/feedback"),
        ("tei:http://me:hush@rank.example/rerank#large", "tei:http://…@rank.example/rerank#large"),
        ("tei:http://rank.example/rerank?sig=hush", "tei:http://rank.example/rerank"),
        ("sqlite:///feedback.db", "sqlite:///feedback.db"),
        ("hf:org/name", "hf:org/name"),
    ],
)
def test_secrets_are_not_shown(given, shown):
    settings = ServerSettings(store=given, model=given).shown()
    assert (settings["store"], settings["model"]) == (shown, shown)


def test_a_model_that_cannot_be_loaded_is_logged_without_its_secrets(caplog):
    with pytest.raises(ArtifactError):
        create_app().state.slot.load_first("tei:http://me:hush@rank.example")
    (record,) = [record for record in caplog.records if record.getMessage() == "model refused"]
    assert record.fields["model"] == "tei:http://…@rank.example"
    assert "hush" not in JsonFormatter().format(record)
