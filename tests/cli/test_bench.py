"""`mnemorank bench`."""

from __future__ import annotations

import json

import pytest

from mnemorank.cli import main
from mnemorank.cli.bench import TASKS
from mnemorank.data.benchmarks import loaders

CONTRACT = {
    "map", "mrr@10", "ndcg@10", "recall@5", "recall@10", "hit@1", "hit@3", "hit@5", "hit@10", "ece", "seconds", "pairs",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def triplets(tmp_path):
    path = tmp_path / "t.jsonl"
    with path.open("w") as stream:
        for city, other in (("berlin", "lisbon"), ("aurora", "zenith")):
            record = {"query": f"who is in {city}", "positive": {"text": f"ruby is in {city}"}}
            stream.write(json.dumps({**record, "negative": {"text": f"ruby was in {other}"}}) + "\n")
    return path


def test_help_lists_all_tasks():
    assert sorted(TASKS) == sorted(loaders)


def test_writes_figures_and_report(triplets, tiny_onnx, tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("figures.json", "report.html")]
    models = ["--model", str(tiny_onnx), "--model", "bm25", "--model", "first-stage"]
    code = main(["bench", "triplets", str(triplets), *models, "--json", files[0], "--html", files[1]])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "triplets: 2 questions" in out
    assert "vs. bm25: map" in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {"task", "path", "queries", "candidates_mean", "models"} <= set(figures)
    assert (figures["queries"], figures["candidates_mean"]) == (2, 4.0)
    assert list(figures["models"]) == ["overlap", "bm25", "first-stage"]
    for values in figures["models"].values():
        assert set(values) >= CONTRACT
        assert values["hit@1"] == values["pairwise_accuracy"] == 1.0
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_json_goes_to_stdout_alone(triplets, capsys):
    assert main(["bench", "triplets", str(triplets), "--model", "bm25", "--limit", "1", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == 1


def test_a_second_run_uses_the_cache(triplets, tmp_path, capsys):
    assert main(["bench", "triplets", str(triplets), "--model", "bm25"]) == 0
    files = list((tmp_path / "cache" / "mnemorank" / "bench").iterdir())
    before = files[0].read_bytes()
    assert main(["bench", "triplets", str(triplets), "--model", "bm25"]) == 0
    assert files[0].read_bytes() == before
    assert len(before.splitlines()) == 2


def test_no_cache_writes_nothing(triplets, tmp_path):
    assert main(["bench", "triplets", str(triplets), "--model", "bm25", "--no-cache"]) == 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["nonsense", "FILE"], "nonsense"),
        (["lists", "missing.jsonl"], "missing.jsonl"),
        (["lists", "FILE"], "t.jsonl:1: candidates"),
        (["triplets", "FILE", "--model", "nope"], "nope"),
        (["triplets", "FILE", "--html", "/no/such/folder/r.html"], "/no/such/folder/r.html"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(triplets, capsys, arguments, name):
    arguments = [str(triplets) if argument == "FILE" else argument for argument in arguments]
    assert main(["bench", *arguments, *([] if "--model" in arguments else ["--model", "bm25"])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert name in err
    assert err.count("\n") == 1


def test_a_failing_model_is_a_failure(triplets, capsys):
    assert main(["bench", "triplets", str(triplets), "--model", "http://127.0.0.1:9/rerank"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_everyday_stores(tiny_onnx, tmp_path, capsys):
    store = {
        "store": "flat",
        "memories": [
            {"id": "m1", "text": "ruby lives in lisbon", "created_at": "2023-04-01"},
            {"id": "m2", "text": "ruby lives in berlin now", "created_at": "2025-02-01"},
            {"id": "m3", "text": "the cat is at the doctor"},
            {"id": "m4", "text": "flight to lisbon in april"},
        ],
        "updates": [["m1", "m2"]],
        "questions": [
            {"query": "ruby lives where now", "kind": "current", "relevant": ["m2"], "outdated": ["m1"], "partly": []},
            {"query": "cat doctor", "kind": "keyword", "relevant": ["m3"], "outdated": [], "partly": ["m4"]},
            {"query": "python database", "kind": "none", "relevant": [], "outdated": [], "partly": []},
        ],
    }
    path = tmp_path / "stores.json"
    path.write_text(json.dumps([store]))
    command = ["bench", "everyday", str(path), "--model", str(tiny_onnx), "--model", "bm25"]
    assert main([*command, "--json", str(tmp_path / "figures.json")]) == 0
    out = capsys.readouterr().out
    for column in ("ndcg@10", "outdated below current", "answerable refused", "unanswerable refused", "abstention AUC"):
        assert column in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["queries"], figures["queries_with_relevant"], figures["unanswerable_queries"]) == (3, 2, 1)
    model, bm25 = figures["models"].values()
    assert model["outdated_below_current"] == 1.0
    assert model["by_kind"]["current"]["hit@1"] == 1.0
    assert set(model["abstention"]) >= {"answerable_refused", "unanswerable_refused", "auc"}
    assert bm25["abstention"]["answerable_refused"] is None
    assert bm25["abstention"]["auc"] == 1.0
