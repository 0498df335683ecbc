"""Tables, rankings, JSON and progress bars."""

import io
import json
import sys

import pytest

from mnemorank import Memory
from mnemorank.cli.output import paint, print_json, progress, ranking_table, shorten, table, width
from mnemorank.results import Degradation, Ranking, Result


class Terminal(io.StringIO):
    def isatty(self):
        return True


def result(**fields):
    defaults = {"index": 0, "memory": Memory("ruby works"), "rank": 1, "relevance": 0.9, "score": 0.9, "raw_score": 2.0}
    return Result(**{**defaults, "rank_change": 0, **fields})


def test_wide_characters_take_two_columns():
    assert width("猫 e\u0301") == 4
    assert shorten("猫猫猫", 4) == "猫…"
    assert shorten("a\n\x1b[31mb", 20) == "a [31mb"


def test_table_aligns_columns():
    assert table([("a", 1), ("bb", 22)], ("name", "n"), right=(1,)).splitlines() == [
        "name   n",
        "────  ──",
        "a      1",
        "bb    22",
    ]


def test_colors_only_on_a_terminal_that_wants_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert paint("x", 31, stream=io.StringIO()) == "x"
    assert paint("x", 31, stream=Terminal()) == "\033[31mx\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", 31, stream=Terminal()) == "x"


def test_json_has_null_for_nan_and_infinity(capsys):
    print_json({"a": [float("nan"), float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5]}


def test_progress_is_shown_on_a_terminal_only(monkeypatch):
    pytest.importorskip("tqdm")
    for stream, is_shown in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(progress(range(3), "audit")) == [0, 1, 2]
        assert ("audit" in stream.getvalue()) is is_shown


def test_progress_without_tqdm(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(progress(iter("ab"), "audit")) == ["a", "b"]


def test_ranking_table_marks_stale_unscored_and_degraded():
    stale = result(index=1, rank=2, stale=True, superseded_by=0, memory=Memory("old", occurred_end="2020"))
    unscored = result(index=2, rank=3, relevance=None, score=None, raw_score=None, rank_change=-1)
    degraded = Degradation("deadline", "1 of 3 memories were not scored")
    text = ranking_table(
        Ranking((result(), stale, unscored), degraded=degraded, warnings=("odd date",), abstained=True)
    )
    _, *lines = text.splitlines()
    assert "superseded" in lines[1]
    assert "→ 2020" in lines[1]
    assert "—" in lines[2]
    assert lines[3].startswith("abstained: ")
    assert lines[4] == "degraded (deadline): 1 of 3 memories were not scored"
    assert lines[5] == "warning: odd date"


def test_ranking_table_shows_the_score_and_the_relevance():
    lines = ranking_table(Ranking((result(score=0.75, relevance=0.5, rank_change=2),))).splitlines()
    assert lines[1].split() == ["1", "████▌", "0.75", "0.50", "↑", "2", "ruby", "works"]
    assert ranking_table(Ranking(())) == "no memory was selected"


def test_ranking_table_explains_factors():
    explained = result(factors={"model": 0.9, "first_stage": -0.25, "recency": 1.1})
    assert ranking_table(Ranking((explained,)), explain=True, header=False).splitlines()[1].split("  ")[2:] == [
        " model +0.90",
        "first_stage -0.25",
        "recency 1.10",
        "raw 2.00",
    ]
