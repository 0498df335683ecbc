"""The lists that the `mini` recipe reads."""

from __future__ import annotations

import json
import runpy
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.training.conftest import make_lists
from tests.training.test_bundled_recipes import mini_files, write_gzip

SESSION = [
    {"role": "user", "content": "I moved to Porto with my two cats in the spring of last year."},
    {"role": "assistant", "content": "How nice for the two cats!"},
]


@pytest.mark.slow
def test_the_lists_that_mini_reads_are_those_that_its_makers_write(tmp_path, tiny_onnx, tiny_bert, monkeypatch):
    """The makers on next to no data: what counts are the names of the files."""
    makers = Path(__file__).parents[2] / "research" / "mini_data"
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(makers))
    import agent_questions as asked
    import dated_facts as dates
    import wiki_paragraphs as paragraphs

    make = dates.make
    monkeypatch.setattr(dates, "make", lambda count, rng: make(1, rng))
    monkeypatch.setattr(asked, "read", lambda: defaultdict(list))
    monkeypatch.setattr(paragraphs, "DEV_QUESTIONS", 0)
    for name in ("lists", "2wiki", "longmemeval"):
        (tmp_path / name).mkdir()
    (dated,) = make_lists(1, seed=1)
    dated["candidates"] = [{**each, "occurred_start": "2026-01-01"} for each in dated["candidates"]]
    for name in ("realmem", "multihoprag", "squad", "medquad"):
        write_gzip(tmp_path / "lists" / f"{name}.train.jsonl.gz", json.dumps(dated) + "\n")
    where = {"question": "where", "answer": "there", "answer_session_ids": [], "haystack_session_ids": ["s"]}
    rows = [{**where, "question_id": f"{i}_abs", "haystack_sessions": [SESSION]} for i in range(9)]
    write_gzip(tmp_path / "longmemeval" / "longmemeval_s_train.json.gz", json.dumps(rows))
    told = "{} is a painter who was taught by {} in a small town by the sea for many years."
    context = [["Ruby Lane", [told.format("Ruby Lane", "Max Stone"), "She paints boats and nothing but boats."]]]
    context += [["Max Stone", [told.format("Max Stone", "Ruby Lane"), "He paints what she does not paint."]]]
    question = {"_id": "1", "question": "who taught Ruby", "context": context, "supporting_facts": [["Max Stone", 0]]}
    write_gzip(tmp_path / "2wiki" / "2wikimultihop.json.gz", json.dumps([question]))
    monkeypatch.setenv("MNEMORANK_DATA", str(tmp_path))
    taught = ["--taught-by", str(tiny_bert), "--limit", "1"]
    for options in (["--limit", "1"], ["--hard-for", str(tiny_onnx)], ["--closer-for", str(tiny_onnx)], taught):
        monkeypatch.setattr(sys, "argv", ["mini_data", str(tmp_path / "made"), *options])
        runpy.run_path(str(makers / "__main__.py"), run_name="__main__")
    for name in {path.stem for path in makers.glob("[a-z]*.py")} - known:
        sys.modules.pop(name, None)

    made = {path.name for path in (tmp_path / "made").iterdir()}
    assert mini_files("MNEMORANK_LISTS") <= made
    assert "squad-taught.jsonl.gz" in made
