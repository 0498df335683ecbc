"""Settings by flag, environment variable and file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mnemorank.errors import ArtifactError, InputError
from mnemorank.server import ServerSettings, create_app
from mnemorank.server.observability import JsonFormatter


@pytest.fixture
def environment(monkeypatch):
    """Set environment variables of the server by the names of settings."""

    def set_variables(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"MNEMORANK_{name.upper()}", value)

    return set_variables


def test_flags_override_the_environment_which_overrides_the_file(tmp_path, environment):
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nport = 1\nhost = "::1"\nqueue_pairs = 7\ncors_origins = ["https://a.example"]\n')
    environment(port="2", queue_pairs="8", log_texts="yes", unknown="x")
    settings = ServerSettings.load({"port": "3", "host": None}, file)
    assert (settings.port, settings.queue_pairs, settings.host) == (3, 8, "::1")
    assert settings.log_texts is True
    assert settings.cors_origins == ("https://a.example",)


def test_environment_variables_are_parsed_by_type(environment):
    environment(
        keys="~/keys.toml",
        cors_origins="https://a.example, https://b.example",
        batching="off",
        request_timeout="2.5",
        store="",
    )
    settings = ServerSettings.load()
    assert settings.keys == Path("~/keys.toml").expanduser()
    assert settings.cors_origins == ("https://a.example", "https://b.example")
    assert settings.batching is False
    assert settings.request_timeout == 2.5
    assert settings.store is None, "an empty variable counts as not set"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "http"),
        ("port", "70000"),
        ("batching", "maybe"),
        ("max_documents", "0"),
        ("max_documents", "9999999"),
        ("request_timeout", "-1"),
        ("request_timeout", "nan"),
        ("explore", "0.9"),
        ("log_level", "loud"),
        ("score_cache", "-1"),
        ("allowed_hosts", "a*.example"),
        ("allowed_hosts", "example.*"),
    ],
)
def test_invalid_values_are_errors_that_name_the_setting(environment, name, value):
    environment(**{name: value})
    with pytest.raises(InputError, match=value) as caught:
        ServerSettings.load()
    assert (caught.value.field, caught.value.code) == (name, "invalid")


@pytest.mark.parametrize(("name", "value"), [("port", True), ("prot", 1), ("threads", 0)])
def test_invalid_arguments_are_input_errors(name, value):
    with pytest.raises(InputError) as caught:
        ServerSettings(**{name: value})
    assert caught.value.field == name


def test_allowed_hosts_may_have_a_wildcard(environment):
    environment(allowed_hosts="*, *.example.com, a.example")
    assert ServerSettings.load().allowed_hosts == ("*", "*.example.com", "a.example")


def test_a_seed_may_be_any_integer_and_zero_turns_the_cache_off(environment):
    environment(explore_seed="0", score_cache="0")
    settings = ServerSettings.load()
    assert (settings.explore_seed, settings.score_cache) == (0, 0)
    assert ServerSettings(explore_seed=-3).explore_seed == -3


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, (0.25, 7)), ({"explore": 0.0, "explore_seed": 0}, (0.0, 0)), ({"explore": 0.5}, (0.5, 7))],
)
def test_settings_of_the_server_override_learning_toml(tmp_path, tiny_settings, given, expected):
    (tmp_path / "learning.toml").write_text("explore = 0.25\nexplore_seed = 7\n")
    state = create_app(tiny_settings(learning=tmp_path, **given)).state
    state.learning.close()
    assert (state.settings.explore, state.settings.explore_seed) == expected


@pytest.mark.parametrize(
    ("content", "field", "code"),
    [
        ("prot = 1", "prot", "unknown"),
        ("port = true", "port", "invalid"),
        ("host = 3", "host", "invalid"),
        ("max_documents = 3.5", "max_documents", "invalid"),
        ("serve = 3", "serve", "invalid"),
        ('cors_origins = ["https://a.example", 3]', "cors_origins.1", "invalid"),
    ],
)
def test_an_invalid_file_is_an_error_that_names_file_and_setting(tmp_path, content, field, code):
    file = tmp_path / "serve.toml"
    file.write_text(content)
    with pytest.raises(InputError) as caught:
        ServerSettings.load(file=file)
    assert (caught.value.location, caught.value.field, caught.value.code) == (str(file), field, code)


def test_an_invalid_variable_is_not_blamed_on_the_file(tmp_path, environment):
    file = tmp_path / "serve.toml"
    file.write_text("port = 8001")
    environment(port="http")
    with pytest.raises(InputError) as caught:
        ServerSettings.load(file=file)
    assert (caught.value.location, caught.value.field) == (None, "port")


@pytest.mark.parametrize("content", [None, "port = "])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path, content):
    file = tmp_path / "serve.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=r"serve\.toml"):
        ServerSettings.load(file=file)


@pytest.mark.parametrize(
    ("url", "redacted"),
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
def test_secrets_are_redacted(url, redacted):
    settings = ServerSettings(store=url, model=url).redacted()
    assert (settings["store"], settings["model"]) == (redacted, redacted)


def test_a_model_that_cannot_be_loaded_is_logged_without_secrets(caplog):
    with pytest.raises(ArtifactError):
        create_app().state.slot.load_first("tei:http://me:hush@rank.example")
    (record,) = [record for record in caplog.records if record.getMessage() == "model refused"]
    assert record.fields["model"] == "tei:http://…@rank.example"
    assert "hush" not in JsonFormatter().format(record)
