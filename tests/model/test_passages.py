"""What a model reads of long and unusual texts."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest

from mnemorank import InputError, Memory, Model, Moment
from mnemorank.artifact.manifest import write_manifest
from tests.helpers.requests import QUERY


def test_a_long_memory_is_scored_by_its_best_window(reranker):
    long = "the cat. a dog in the house. " * 60 + "ruby work now at aurora. " + "a plan of the trip. " * 60
    (result,) = reranker.rerank(QUERY, [long])
    assert "ruby work now" in result.passage
    assert len(result.passage) < len(long) / 5
    assert result.raw_score == 2


REPLY = "assistant: " + "aurora labs, aurora work, where does aurora work? " * 30 + "\n"


def read(folder, text, query=QUERY, **windows):
    """Return the windows that a model with an input of 64 tokens reads of a text."""
    model = Model.load(folder)
    manifest = replace(model.manifest, windows=replace(model.manifest.windows, **windows))
    passages = replace(model, manifest=manifest).passages(query, [Memory(text)])
    assert all(0 < each.passage.length <= model.scorer.room(query) for each in passages)
    return [each.window for each in passages]


def test_every_user_turn_of_a_long_chat_is_read(folder, reranker):
    said = ["user: the cat sat.", "user: ruby is my name now.", "user: a plan of the trip."]
    chat = "".join(f"{turn}\n{REPLY}" for turn in said)
    windows = read(folder, chat)
    assert windows[:3] == said
    assert len(windows) > 3
    assert all("aurora" in window for window in windows[3:])
    (result,) = reranker.rerank("the name ruby", [chat])
    assert result.passage == said[1]


def test_replies_of_a_long_chat_are_read_too(folder, reranker):
    said = "user: a plan of the trip, please, ruby.\n"
    replied = "assistant: " + "the cat sat. " * 60 + "ruby does work at aurora now. " + "the dog sat. " * 60 + "\n"
    (result,) = reranker.rerank(QUERY, [said + replied + said])
    assert "ruby does work" in result.passage


def test_room_left_by_user_turns_is_used_for_windows(folder):
    """A note may begin with the name of a role, and a chat may have one long reply."""
    log = "".join(f"the cat {i} sat. ruby does work. a dog. " * 4 for i in range(40))
    for heading in ("User: admin\nSystem: aurora\n", "Summary\nassistant: ", "user: go.\nassistant: "):
        assert len([window for window in read(folder, heading + log, max_count=4) if len(window) > 40]) == 3
    assert len(read(folder, log, max_count=4)) == 4
    assert len(read(folder, "user: go.\nassistant: " + log, max_count=1)) == 1


def test_user_turns_take_no_more_tokens_than_windows_would(folder):
    model = Model.load(folder)
    chat = "".join(f"user: no {i}.\n{REPLY}" for i in range(400))
    *turns, _ = model.passages(QUERY, [Memory(chat)])
    room = model.scorer.room(QUERY)
    query = model.scorer.prepare([QUERY])[0].length
    assert len(turns) > 3
    assert sum(turn.passage.length + query for turn in turns) <= (room + query) * 2


@pytest.mark.parametrize("max_length", [64, 4096])
def test_user_turns_of_a_very_long_chat_are_read(folder, tmp_path, max_length):
    chat = f"user: a plan.\n{REPLY}" * 100 + "user: ruby is my name now.\n" + f"user: a plan.\n{REPLY}" * 100
    longer = shutil.copytree(folder, tmp_path / "longer")
    manifest = Model.load(folder).manifest
    write_manifest(longer, replace(manifest, max_length=max_length))
    passages = Model.load(longer).passages("where does ruby work, aurora labs?", [Memory(chat)])
    assert "user: ruby is my name now." in [each.window for each in passages]


def test_a_long_user_turn_leaves_room_for_others(folder):
    pasted = "user: look: " + "where does ruby work, here is a gem. " * 60 + "\n"
    windows = read(folder, pasted + REPLY + "user: ruby has a plan now.\n" + REPLY)
    assert "user: ruby has a plan now." in windows


def test_the_windows_of_a_long_user_turn_differ(folder):
    long = "user: " + "the cat sat. " * 200 + "ruby does work at aurora now. " + "a dog. " * 200
    windows = read(folder, f"assistant: hello.\n{long}\nassistant: well.", overlap=0.0)
    assert len(windows) == len(set(windows))
    assert sum("ruby does work" in window for window in windows) == 1


def test_empty_turns_are_not_read(folder):
    windows = read(folder, "user: \n" + "user: hi, ruby.\n" + "\n" * 40_000 + REPLY)
    assert windows[0] == "user: hi, ruby."
    assert all(window.strip("user: \n") for window in windows)


def test_every_window_keeps_the_dates(folder, reranker):
    memory = Memory("cat. " * 200, type="event", occurred_start=Moment(2024, 3, 5))
    (result,) = reranker.rerank("march 05 2024", [memory])
    assert result.raw_score == reranker.rerank("march 05 2024", [replace(memory, text="cat.")])[0].raw_score


def test_a_very_long_word_is_scored(reranker):
    (result,) = reranker.rerank(QUERY, ["zqx" * 3000])
    assert result.scored


def test_a_context_longer_than_the_window_is_read_as_text(reranker):
    (result,) = reranker.rerank(QUERY, [Memory("cat", context="ruby now " * 100)])
    assert result.raw_score > 0


def test_unusual_texts_are_ranked(reranker):
    pool = ["", " \n", "\ud800 ruby", "ruby\x00\x07\u202e now", "🙂" * 10, "ruby"]
    ranking = reranker.rerank(QUERY, pool)
    assert {r.index for r in ranking[:3]} == {2, 3, 5}
    assert [r.index for r in ranking][-2:] == [0, 1]
    assert not ranking[-1].scored


def test_a_text_of_ten_megabytes_is_scored_by_its_best_window(reranker):
    text = ("the cat sat. " * 800_000) + "ruby work now."
    (result,) = reranker.rerank(QUERY, [text])
    assert "ruby work now" in result.passage


def test_only_the_end_of_a_long_query_is_read_with_a_warning(reranker):
    question = "where does ruby work"
    turn = "thanks for the recipe, the soup was lovely and we ate all of it. " * 30 + question
    pool = ["ruby work at aurora labs", "the soup recipe"]
    ranking = reranker.rerank(turn, pool)
    assert all(result.scored for result in ranking)
    (warning,) = ranking.warnings
    assert re.fullmatch(
        rf"query: too long for the model, which read only its last \d+ of {len(turn)} characters", warning
    )
    assert int(warning.split()[-4]) >= len(question)
    assert reranker.rerank("口" * 3000, pool).warnings
    assert not reranker.rerank(question, pool).warnings
    with pytest.raises(InputError, match="query"):
        reranker.score(turn, pool)
