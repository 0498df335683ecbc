import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank import InputError, Memory, Moment
from mnemorank.artifact.formats import format_memory, formats

START, END = Moment(2024, 1, 1), Moment(2024, 3, 20)


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (
            Memory("x", type="world", occurred_start=START),
            "[Start: January 01, 2024 (2024-01-01)] [End: ongoing] [World] x",
        ),
        (
            Memory("x", type="event", occurred_start=START, occurred_end=END),
            "[Start: January 01, 2024 (2024-01-01)] [End: March 20, 2024 (2024-03-20)] [Event] x",
        ),
        (Memory("x", type="world"), "[World] x"),
        (Memory("x", type="event", occurred_end=END), "[End: March 20, 2024 (2024-03-20)] [Event] x"),
        (Memory("We use …", type="world", context="Architecture Decision"), "[World] Architecture Decision: We use …"),
        (Memory("x", type="World"), "[World] x"),
        (Memory("x", type="observation"), "[Observation] x"),
        (Memory("x"), "x"),
        (Memory("x", occurred_start=Moment(2024, 3)), "[Start: March 2024 (2024-03)] [End: ongoing] x"),
        (Memory("x", occurred_end=Moment(2024)), "[End: 2024 (2024)] x"),
    ],
)
def test_hindsight_2(memory, text):
    assert format_memory(memory, "hindsight-2") == text


def test_hindsight_1():
    memory = Memory("x", occurred_start=Moment(2022, 6, 5), context="Home", type="world")
    assert format_memory(memory, "hindsight-1") == "[Date: June 05, 2022 (2022-06-05)] Home: x"
    assert format_memory(Memory("x"), "hindsight-1") == "x"


def test_dialogue():
    memory = Memory("I moved.", speaker="Ana", mentioned_at=Moment(2023, 5, 20))
    assert format_memory(memory, "dialogue") == "[May 20, 2023 (2023-05-20)] Ana: I moved."


def test_keyed_begins_with_the_text():
    memory = Memory("I moved.", speaker="Ana", mentioned_at=Moment(2023, 5), entities=("Ana", "Rome"), type="event")
    expected = "Text: I moved.\nMemory type: event\nSpeaker: Ana\nDialogue time: 2023-05\nEntities: Ana, Rome"
    assert format_memory(memory, "keyed") == expected


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(InputError, match="hindsight-2"):
        format_memory(Memory("x"), "nope")


@given(st.text(), st.none() | st.text(min_size=1), st.sampled_from(list(formats)))
def test_every_format_contains_the_whole_text(text, context, name):
    written = formats[name].write(Memory(text, context=context))
    assert written.body == text
    assert written.text == written.before + text + written.after


def test_facts_show_only_the_dates_that_are_known():
    noted = Memory("Ruby likes tea.", type="world", mentioned_at="2024-03-05")
    assert format_memory(noted, "facts") == "[Noted: March 05, 2024 (2024-03-05)] [World] Ruby likes tea."
    started = Memory("Ruby leads the team.", occurred_start="2024-03", mentioned_at="2025-01-01")
    assert format_memory(started, "facts") == "[Start: March 2024 (2024-03)] Ruby leads the team."
    ended = Memory("Ruby lived in Porto.", occurred_end="2023", context="Home")
    assert format_memory(ended, "facts") == "[End: 2023 (2023)] Home: Ruby lived in Porto."
