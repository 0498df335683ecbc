from datetime import date
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank import InputError, Memory, Moment
from mnemorank.memory.memory import read_memories


def test_from_a_string():
    assert Memory.of("hello") == Memory("hello")


def test_from_the_record_of_r0():
    memory = Memory.of(
        {
            "text": "Ruby works at Aurora",
            "occurred_start": "2024-03-11T00:00:00",
            "occurred_end": None,
            "type": "world",
            "context": "",
        }
    )
    assert memory == Memory("Ruby works at Aurora", type="world", occurred_start=Moment(2024, 3, 11))
    assert memory.is_ongoing


def test_field_names_of_other_stores():
    memory = Memory.of({"content": "hi", "score": "0.5", "created_at": "2024", "memory_id": 7, "tags": ["a"]})
    assert (memory.text, memory.first_stage_score, memory.id) == ("hi", 0.5, "7")
    assert memory.mentioned_at == Moment(2024)
    assert memory.metadata == {"tags": ["a"]}


def test_the_text_field_may_be_named():
    memory = Memory.of({"body": "right", "text": "wrong"}, field="body")
    assert memory.text == "right"
    assert memory.metadata == {"text": "wrong"}


def test_nested_metadata_is_merged():
    assert Memory.of({"text": "a", "metadata": {"key": "job"}, "x": 1}).metadata == {"key": "job", "x": 1}


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"text": None}, "text"),
        ({"text": 5}, "text"),
        ({"title": "x"}, "title"),
        ({"text": "a", "occurred_start": "soon"}, "occurred_start"),
        ({"text": "a", "occurred_start": "2024", "occurred_end": "2023"}, "occurred_end"),
        ({"text": "a", "trust": "high"}, "trust"),
        ({"text": "a", "trust": 10**400}, "trust"),
        ({"text": "a", "proof_count": 10**400}, "proof_count"),
        ({"text": "a", "occurred_start": 10**400}, "occurred_start"),
        ({"text": "a", "entities": 5}, "entities"),
        ({"text": "a", "type": ["x"]}, "type"),
        ({"text": "a", "proof_count": "inf"}, "proof_count"),
    ],
)
def test_errors_name_record_and_field(record, named):
    with pytest.raises(InputError, match=rf"memory 1: .*{named}"):
        read_memories(["fine", record])


def test_skip_reports_and_leaves_the_memory_timeless():
    problems = []
    record = {"text": "a", "occurred_start": "soon", "occurred_end": "2024"}
    (memory,) = read_memories([record], on_error="skip", report=problems.append)
    assert (memory.occurred_start, memory.occurred_end) == (None, None)
    assert "memory 0" in problems[0]
    assert "occurred_start" in problems[0]


def test_skip_of_a_turned_range_leaves_no_half_of_it():
    problems = []
    record = {"text": "a", "occurred_start": "2024", "occurred_end": "2023"}
    (memory,) = read_memories([record], on_error="skip", report=problems.append)
    assert memory.date is None
    assert len(problems) == 1


def test_nan_scores_count_as_missing_and_are_reported():
    problems = []
    (memory,) = read_memories([{"text": "a", "score": float("nan")}], report=problems.append)
    assert memory.first_stage_score is None
    assert "NaN" in problems[0]


@pytest.mark.parametrize("pool", ["a string", {"text": "a"}])
def test_a_single_memory_is_not_a_pool(pool):
    with pytest.raises(InputError, match="list"):
        read_memories(pool)


def test_the_callers_dict_is_not_changed():
    record = {"text": "a", "metadata": {"x": 1}}
    Memory.of(record)
    assert record == {"text": "a", "metadata": {"x": 1}}


def test_dates_of_a_memory_of_the_callers_own_making_are_read():
    memory = Memory("a", occurred_start="2024-03", occurred_end=date(2024, 5, 1), mentioned_at=1700000000)
    assert (memory.occurred_start, memory.occurred_end) == (Moment(2024, 3), Moment(2024, 5, 1))
    assert str(memory.mentioned_at) == "2023-11-14T22:13:20+00:00"
    with pytest.raises(InputError, match="occurred_end: not a date: 'soon'"):
        Memory("a", occurred_end="soon")


def test_ids_and_scores_of_a_memory_of_the_callers_own_making_are_plain():
    name = UUID(int=7)
    memory = Memory.of(Memory("a", id=name, first_stage_score=Decimal("0.5")))
    assert (memory.id, memory.first_stage_score) == (str(name), 0.5)


moments = st.builds(lambda d: Moment.parse(d), st.dates())


@given(
    st.builds(
        Memory,
        text=st.text(),
        id=st.none() | st.text(min_size=1),
        mentioned_at=st.none() | moments,
        entities=st.lists(st.text(min_size=1)).map(tuple),
        trust=st.none() | st.floats(0, 1),
        proof_count=st.none() | st.integers(0, 10**6),
    )
)
def test_dict_round_trip(memory):
    assert Memory.of(memory.to_dict()) == memory


def test_a_falsy_end_that_is_no_date_leaves_no_half_range():
    (memory,) = read_memories([{"text": "a", "occurred_start": "2020", "occurred_end": 0}], on_error="skip")
    assert memory.date is None


def test_the_text_field_is_not_another_field_too():
    assert Memory.of({"context": "hello"}, field="context") == Memory("hello")


class Document:
    """As LangChain's: text, metadata, perhaps an id."""

    def __init__(self, page_content, metadata, id=None):
        self.page_content, self.metadata, self.id = page_content, metadata, id


def test_a_langchain_document_is_a_memory():
    memory = Memory.of(Document("Ruby works at Aurora", {"created_at": "2024-03-05", "score": 0.7, "page": 3}, "d1"))
    assert memory.text == "Ruby works at Aurora"
    assert memory.id == "d1"
    assert memory.mentioned_at == Moment(2024, 3, 5)
    assert memory.first_stage_score == 0.7
    assert memory.metadata["page"] == 3


def test_the_record_itself_comes_before_its_metadata():
    memory = Memory.of({"text": "a", "score": 1, "metadata": {"score": 2, "valid_from": "2020"}})
    assert memory.first_stage_score == 1
    assert memory.occurred_start == Moment(2020)


def test_what_is_no_date_in_metadata_is_reported_not_an_error():
    reports = []
    memory = Memory.of({"text": "a", "metadata": {"date": "some day"}}, where="memory 4", report=reports.append)
    assert memory.mentioned_at is None
    assert memory.metadata["date"] == "some day"
    assert len(reports) == 1
    assert reports[0].startswith("memory 4: metadata.date: ")


def test_errors_call_a_field_as_the_caller_does():
    with pytest.raises(InputError, match=r"created_at \(mentioned_at\): "):
        Memory.of({"text": "a", "created_at": "some day"})
    with pytest.raises(InputError, match="got int; give its text, or a dict with `text`"):
        Memory.of(3)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"trust": 80.0}, "trust: expected a number from 0 to 1, got 80"),
        ({"trust": float("nan")}, "trust"),
        ({"proof_count": -1}, "proof_count: expected a number from 0, got -1"),
        ({"occurred_start": "2024", "occurred_end": "2020"}, "occurred_end: 2020 is before occurred_start 2024"),
        ({"metadata": None}, "metadata: expected a dict, got NoneType"),
    ],
)
def test_a_record_made_by_hand_is_checked_too(bad, named):
    with pytest.raises(InputError, match=named):
        Memory("a", **bad)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"speaker": 3}, "speaker: expected a string, got int"),
        ({"type": 3}, "type: expected a string, got int"),
        ({"context": ["a"]}, "context: expected a string, got list"),
        ({"entities": [1]}, "entities: expected a list of names"),
        ({"entities": "Ruby"}, "entities: expected a list of names, got 'Ruby'"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(wrong, named):
    with pytest.raises(InputError, match=named):
        Memory("Ruby lives in Porto", **wrong)
