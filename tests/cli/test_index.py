"""`mnemorank index`."""

import json

import pytest

from mnemorank.cli import main


@pytest.fixture
def model(split_onnx):
    return ["--model", str(split_onnx)]


@pytest.fixture
def path(tmp_path, memories, model, capsys):
    path = str(tmp_path / "memories.db")
    assert main(["index", "add", path, memories, *model]) == 0
    assert capsys.readouterr().out == "3 memories: 3 new; the index has 3\n"
    return path


def test_adding_again_adds_nothing(path, memories, model, capsys):
    assert main(["index", "add", path, memories, *model, "--json"]) == 0
    added = json.loads(capsys.readouterr().out)
    assert (added["memories"], added["new"], added["warnings"]) == (3, 0, [])
    assert len(set(added["ids"])) == 3
    assert added["ids"][2] == "3"


def test_searches_as_a_table_and_as_json(path, model, capsys):
    assert main(["index", "search", path, "where does ruby work", "--top-k", "2", "--now", "2025-01-01", *model]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["index", "search", path, "where does ruby work", "--explain", "--json", *model]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["query"] == "where does ruby work"
    assert len(found["results"]) == 3
    assert found["results"][0]["factors"]
    assert {"occurred_start": "2024-03"}.items() <= {
        key: value for result in found["results"] for key, value in result["memory"].items()
    }.items()


def test_filters_compare_as_text(tmp_path, model, capsys):
    file = tmp_path / "tagged.jsonl"
    file.write_text('{"text": "a cat", "id": "a", "n": 3, "ok": true}\n{"text": "a dog", "id": "b", "n": 4}\n')
    path = str(tmp_path / "tagged.db")
    main(["index", "add", path, str(file), *model])
    for filters, expected in ((["n=3"], ["a"]), (["n=3", "ok=true"], ["a"]), (["id=b"], ["b"]), (["n=5"], [])):
        capsys.readouterr()
        options = [word for each in filters for word in ("--filter", each)]
        assert main(["index", "search", path, "cat", *options, "--json", *model]) == 0
        assert [result["id"] for result in json.loads(capsys.readouterr().out)["results"]] == expected
    assert main(["index", "search", path, "cat", "--filter", "n=3", "--filter", "n=4", *model]) == 2


def test_deletes_and_shows_statistics_without_a_model(path, capsys):
    assert main(["index", "delete", path, "3", "nobody"]) == 0
    assert capsys.readouterr().out == "1 deleted; the index has 2 memories\n"
    assert main(["index", "stats", path, "--json"]) == 0
    stats = json.loads(capsys.readouterr().out)
    assert (stats["memories"], stats["passages"], stats["model"]) == (2, 2, "tiny-split")
    assert main(["index", "stats", path]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["memories", "2"]


@pytest.mark.parametrize("action", [["search", "{}", "cat"], ["delete", "{}", "a"], ["stats", "{}"]])
def test_an_index_that_does_not_exist_is_not_created(tmp_path, capsys, action):
    path = tmp_path / "none.db"
    assert main(["index", *(word.format(path) for word in action)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not path.exists()


def test_a_model_that_is_not_split_is_refused(tmp_path, memories, tiny_onnx, capsys):
    path = tmp_path / "new.db"
    assert main(["index", "add", str(path), memories, "--model", str(tiny_onnx)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not path.exists()
