"""The files of lists: contents shared by all makers, and the names that the `mini` recipe reads."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import runpy
import sys
import time
from collections import defaultdict

import agent_questions
import dated_facts
import lists
import pytest
import wiki_paragraphs

from tests.research.conftest import MINI_DATA
from tests.training.conftest import make_lists
from tests.training.test_bundled_recipes import mini_files, write_gzip

SESSION = [
    {"role": "user", "content": "I moved to Porto with my two cats in the spring of last year."},
    {"role": "assistant", "content": "How nice for the two cats!"},
]


@pytest.mark.slow
def test_the_makers_write_all_lists_that_mini_reads(tmp_path, tiny_onnx, tiny_bert, monkeypatch):
    """With hardly any data: only the names of the files matter."""
    make_facts = dated_facts.make
    monkeypatch.setattr(dated_facts, "make", lambda count, rng: make_facts(1, rng))
    monkeypatch.setattr(agent_questions, "read_questions", lambda: defaultdict(list))
    monkeypatch.setattr(wiki_paragraphs, "DEV_QUESTIONS", 0)
    for name in ("lists", "2wiki", "longmemeval"):
        (tmp_path / name).mkdir()
    (dated,) = make_lists(1, seed=1)
    dated["candidates"] = [{**each, "occurred_start": "2026-01-01"} for each in dated["candidates"]]
    for name in ("realmem", "multihoprag", "squad", "medquad"):
        write_gzip(tmp_path / "lists" / f"{name}.train.jsonl.gz", json.dumps(dated) + "\n")
    row = {"question": "where", "answer": "there", "answer_session_ids": [], "haystack_session_ids": ["s"]}
    rows = [{**row, "question_id": f"{i}_abs", "haystack_sessions": [SESSION]} for i in range(9)]
    write_gzip(tmp_path / "longmemeval" / "longmemeval_s_train.json.gz", json.dumps(rows))
    sentence = "{} is a painter who was taught by {} in a small town by the sea for many years."
    context = [["Ruby Lane", [sentence.format("Ruby Lane", "Max Stone"), "She paints boats and nothing but boats."]]]
    context += [["Max Stone", [sentence.format("Max Stone", "Ruby Lane"), "He paints what she does not paint."]]]
    question = {"_id": "1", "question": "who taught Ruby", "context": context, "supporting_facts": [["Max Stone", 0]]}
    write_gzip(tmp_path / "2wiki" / "2wikimultihop.json.gz", json.dumps([question]))
    monkeypatch.setenv("MNEMORANK_DATA", str(tmp_path))
    for options in (
        ["--limit", "1"],
        ["--hard-for", str(tiny_onnx)],
        ["--excerpts-for", str(tiny_onnx)],
        ["--teacher", str(tiny_bert), "--limit", "1"],
    ):
        monkeypatch.setattr(sys, "argv", ["mini_data", str(tmp_path / "made"), *options])
        runpy.run_path(str(MINI_DATA / "__main__.py"), run_name="__main__")

    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert mini_files("MNEMORANK_LISTS") <= names
    assert "squad-distilled.jsonl.gz" in names


def test_the_same_lists_give_the_same_bytes(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("mini_data_main", MINI_DATA / "__main__.py")
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    for day, folder in enumerate(("one", "other")):
        (tmp_path / folder).mkdir()
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda day=day: 1e9 + 86400 * day)
            main.write_lists(tmp_path / folder, "x", [lists.TrainingList("where?", ["here"], ["there"])])
    one, other = (tmp_path / folder / "x.jsonl.gz" for folder in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    assert json.loads(gzip.decompress(one.read_bytes()))["query"] == "where?"


def test_a_narrowed_list_keeps_its_positives_and_the_most_similar_negatives(tmp_path):
    negatives = [{"text": f"the cat number {n}" if n < 3 else f"other {n}", "label": 0} for n in range(40)]
    record = {"query": "where is the cat", "candidates": [{"text": "on the mat", "label": 1}, *reversed(negatives)]}
    path = tmp_path / "lists.jsonl.gz"
    write_gzip(path, json.dumps(record))
    (made,) = lists.narrow_lists(path, random.Random(1), negatives=8)
    assert made.positives == [{"text": "on the mat"}]
    assert len(made.negatives) == 8
    assert {f"the cat number {n}" for n in range(3)} <= {each["text"] for each in made.negatives}


def test_paragraphs_of_dev_questions_are_excluded_with_any_spacing(write_questions, monkeypatch, tmp_path):
    write_questions()

    def row(name, *context):
        return {"_id": name, "question": "where?", "context": context, "supporting_facts": [[context[0][0], 0]]}

    count = " was a count of the old line, who held the castle by the bridge for thirty years and left it to his son."
    original, respaced = f"Blois (1345-1404){count}", f"Blois( 1345- 1404){count}"
    town = "Town {0} lies by the river and has a mill, a church, a school, a market on Fridays and {0} inns."
    others = [[f"Town {n}", [town.format(n)]] for n in range(6)]
    rows = [row("1", ["Count", [original]], *others[:2]), row("2", *others[2:], ["Count", [respaced]])]
    path = tmp_path / "2wiki.json.gz"
    write_gzip(path, json.dumps(rows))
    monkeypatch.setattr(wiki_paragraphs, "DEV_QUESTIONS", 1)
    monkeypatch.setattr(wiki_paragraphs, "stable_hash", int)

    made = wiki_paragraphs.make(path, random.Random(1))

    texts = str([made[name] for name in ("ict", "title", "bridge")])
    assert "Town" in texts
    assert "1345" not in texts
