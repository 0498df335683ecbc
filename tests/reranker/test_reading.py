"""What is read of long and odd texts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mnemorank import InputError, Memory, Model, Moment
from tests.reranker.request import QUERY


def test_long_memories_are_read_in_windows_and_the_best_counts(reranker):
    long = "the cat. a dog in the house. " * 60 + "ruby work now at aurora. " + "a plan of the trip. " * 60
    (result,) = reranker.rerank(QUERY, [long])
    assert "ruby work now" in result.passage
    assert len(result.passage) < len(long) / 5
    assert result.raw_score == 2


def test_of_a_long_chat_every_turn_of_the_user_is_read(reranker):
    reply = "\nassistant: " + "aurora labs, aurora work, where does aurora work? " * 30
    said = ["user: the cat sat.", "user: ruby is my name now.", "user: a plan of the trip."]
    (result,) = reranker.rerank("where does ruby work at aurora labs", ["".join(turn + reply + "\n" for turn in said)])
    assert "aurora" in result.passage
    (result,) = reranker.rerank("the name ruby", ["".join(turn + reply + "\n" for turn in said)])
    assert result.passage == said[1]


def test_of_a_long_chat_replies_are_read_too(reranker):
    said = "user: a plan of the trip, please.\n"
    replied = "assistant: " + "the cat sat. " * 60 + "ruby does work at aurora now. " + "the dog sat. " * 60 + "\n"
    (result,) = reranker.rerank(QUERY, [said + replied + said])
    assert "ruby does work" in result.passage


def test_a_chat_is_read_within_the_room_of_its_windows(folder):
    model = Model.load(folder)
    chat = "".join(f"user: turn {i} of ruby.\nassistant: {'the cat sat. ' * 9}\n" for i in range(400))
    readings = model.readings(QUERY, [Memory(chat)])
    room = model.scorer.room(QUERY)
    most = model.manifest.windows.most
    *turns, window = readings
    assert 2 < len(turns) <= 8 * (most - 1)
    assert sum(turn.passage.length for turn in turns) <= room * (most - 1)
    assert "the cat sat." in window.window


def test_what_the_user_said_in_an_endless_chat_is_read(folder):
    chatter = "user: a plan.\nassistant: " + "where does aurora work, labs, labs? " * 50 + "\n"
    chat = chatter * 100 + "user: ruby is my name now.\n" + chatter * 100
    readings = Model.load(folder).readings("where does ruby work, aurora labs?", [Memory(chat)])
    assert "user: ruby is my name now." in [reading.window for reading in readings]


def test_a_long_turn_of_the_user_is_read_in_windows(folder):
    model = Model.load(folder)
    chat = "user: " + "the cat sat. " * 200 + "ruby does work at aurora now. " + "a dog. " * 200 + "\nassistant: well."
    readings = model.readings(QUERY, [Memory(chat)])
    windows = [reading.window for reading in readings]
    assert len(windows) == len(set(windows)) == model.manifest.windows.most
    assert any("ruby does work" in window for window in windows)
    assert all(reading.passage.length <= model.scorer.room(QUERY) for reading in readings)


def test_every_window_keeps_the_dates(folder, reranker):
    memory = Memory("cat. " * 200, type="event", occurred_start=Moment(2024, 3, 5))
    (result,) = reranker.rerank("march 05 2024", [memory])
    assert result.raw_score == reranker.rerank("march 05 2024", [replace(memory, text="cat.")])[0].raw_score


def test_text_of_one_endless_word_is_still_read_whole(reranker):
    (result,) = reranker.rerank(QUERY, ["zqx" * 3000])
    assert result.scored


def test_a_context_longer_than_the_window_is_read_as_text(reranker):
    (result,) = reranker.rerank(QUERY, [Memory("cat", context="ruby now " * 100)])
    assert result.raw_score > 0


def test_odd_texts_have_defined_results(reranker):
    pool = ["", " \n", "\ud800 ruby", "ruby\x00\x07\u202e now", "🙂" * 10, "ruby"]
    ranking = reranker.rerank(QUERY, pool)
    assert {r.index for r in ranking[:3]} == {2, 3, 5}
    assert [r.index for r in ranking][-2:] == [0, 1]
    assert not ranking[-1].scored


def test_ten_megabytes_of_text(reranker):
    text = ("the cat sat. " * 800_000) + "ruby work now."
    (result,) = reranker.rerank(QUERY, [text])
    assert "ruby work now" in result.passage


def test_a_long_turn_is_read_by_its_end_and_says_so(reranker):
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
    with pytest.raises(InputError, match="leave no room for a memory"):
        reranker.score(turn, pool)
