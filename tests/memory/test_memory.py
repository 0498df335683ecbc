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


def test_from_a_record_of_the_hindsight_reranker():
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


def test_the_text_field_can_be_named():
    memory = Memory.of({"body": "right", "text": "wrong"}, field="body")
    assert memory.text == "right"
    assert memory.metadata == {"text": "wrong"}


def test_nested_metadata_is_merged():
    assert Memory.of({"text": "a", "metadata": {"key": "job"}, "x": 1}).metadata == {"key": "job", "x": 1}


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"text": None}, "memories.1.text"),
        ({"text": 5}, "memories.1.text"),
        ({"title": "x"}, "memories.1"),
        ({"text": "a", "occurred_start": "soon"}, "memories.1.occurred_start"),
        ({"text": "a", "occurred_start": "2024", "occurred_end": "2023"}, "memories.1.occurred_end"),
        ({"text": "a", "trust": "high"}, "memories.1.trust"),
        ({"text": "a", "trust": 10**400}, "memories.1.trust"),
        ({"text": "a", "proof_count": 10**400}, "memories.1.proof_count"),
        ({"text": "a", "occurred_start": 10**400}, "memories.1.occurred_start"),
        ({"text": "a", "entities": 5}, "memories.1.entities"),
        ({"text": "a", "type": ["x"]}, "memories.1.type"),
        ({"text": "a", "proof_count": "inf"}, "memories.1.proof_count"),
    ],
)
def test_errors_carry_the_path_of_the_field(record, field):
    with pytest.raises(InputError) as caught:
        read_memories(["fine", record])
    assert caught.value.field == field
    assert str(caught.value) == f"{field}: {caught.value.message}"


def test_skip_reports_a_bad_date_and_leaves_the_memory_undated():
    problems = []
    record = {"text": "a", "occurred_start": "soon", "occurred_end": "2024"}
    (memory,) = read_memories([record], on_error="skip", report=problems.append)
    assert (memory.occurred_start, memory.occurred_end) == (None, None)
    assert problems[0].startswith("memories.0.occurred_start: ")


def test_skip_drops_both_dates_of_a_reversed_range():
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


def test_the_dict_passed_in_is_not_modified():
    record = {"text": "a", "metadata": {"x": 1}}
    Memory.of(record)
    assert record == {"text": "a", "metadata": {"x": 1}}


def test_the_constructor_parses_dates():
    memory = Memory("a", occurred_start="2024-03", occurred_end=date(2024, 5, 1), mentioned_at=1700000000)
    assert (memory.occurred_start, memory.occurred_end) == (Moment(2024, 3), Moment(2024, 5, 1))
    assert str(memory.mentioned_at) == "2023-11-14T22:13:20+00:00"
    with pytest.raises(InputError) as caught:
        Memory("a", occurred_end="soon")
    assert caught.value.field == "occurred_end"


def test_ids_become_strings_and_scores_floats():
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


def test_a_bad_end_of_zero_drops_the_start_too():
    (memory,) = read_memories([{"text": "a", "occurred_start": "2020", "occurred_end": 0}], on_error="skip")
    assert memory.date is None


def test_the_field_of_the_text_is_not_read_as_another_field():
    assert Memory.of({"context": "hello"}, field="context") == Memory("hello")


class Document:
    """Like LangChain's Document."""

    def __init__(self, page_content, metadata, id=None):
        self.page_content, self.metadata, self.id = page_content, metadata, id


def test_a_langchain_document_is_a_memory():
    memory = Memory.of(Document("Ruby works at Aurora", {"created_at": "2024-03-05", "score": 0.7, "page": 3}, "d1"))
    assert memory.text == "Ruby works at Aurora"
    assert memory.id == "d1"
    assert memory.mentioned_at == Moment(2024, 3, 5)
    assert memory.first_stage_score == 0.7
    assert memory.metadata["page"] == 3


def test_the_record_takes_precedence_over_its_metadata():
    memory = Memory.of({"text": "a", "score": 1, "metadata": {"score": 2, "valid_from": "2020"}})
    assert memory.first_stage_score == 1
    assert memory.occurred_start == Moment(2020)


def test_a_bad_date_in_metadata_is_reported_and_not_raised():
    reports = []
    memory = Memory.of({"text": "a", "metadata": {"date": "some day"}}, path="memories.4", report=reports.append)
    assert memory.mentioned_at is None
    assert memory.metadata["date"] == "some day"
    assert len(reports) == 1
    assert reports[0].startswith("memories.4.metadata.date: ")


def test_errors_name_the_field_as_the_record_does():
    with pytest.raises(InputError) as caught:
        Memory.of({"text": "a", "created_at": "some day"})
    assert caught.value.field == "created_at"


def test_a_value_of_a_wrong_type_is_an_error_of_the_record():
    with pytest.raises(InputError, match="int") as caught:
        read_memories([3])
    assert caught.value.field == "memories.0"


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"trust": 80.0}, "trust"),
        ({"trust": float("nan")}, "trust"),
        ({"proof_count": -1}, "proof_count"),
        ({"occurred_start": "2024", "occurred_end": "2020"}, "occurred_end"),
        ({"metadata": None}, "metadata"),
        ({"speaker": 3}, "speaker"),
        ({"type": 3}, "type"),
        ({"context": ["a"]}, "context"),
        ({"entities": [1]}, "entities"),
        ({"entities": "Ruby"}, "entities"),
        ({"entities": None}, "entities"),
        ({"entities": 3}, "entities"),
    ],
)
def test_the_constructor_checks_its_arguments(bad, field):
    with pytest.raises(InputError) as caught:
        Memory("Ruby lives in Porto", **bad)
    assert caught.value.field == field


def test_a_date_under_an_unknown_name_is_reported_once_per_pool():
    reports = []
    records = [{"text": f"note {i}", "createdAt": "2024-03-05", "metadata": {"seen_at": 1700000000}} for i in range(3)]
    memories = read_memories(records, report=reports.append)
    assert [memory.date for memory in memories] == [None] * 3
    assert sorted(report.partition(": ")[0] for report in reports) == [
        "memories.0.createdAt",
        "memories.0.metadata.seen_at",
    ]
    assert memories[0].metadata["createdAt"] == "2024-03-05"


@pytest.mark.parametrize(
    "record",
    [
        {"text": "a", "created_at": "2024", "expires_at": "2030-01-01"},
        {"text": "a", "reading_time": 7, "rate": "2024"},
        {"text": "a", "updated": None, "day": "Monday"},
    ],
)
def test_other_fields_of_a_memory_are_not_mistaken_for_its_date(record):
    reports = []
    read_memories([record], report=reports.append)
    assert reports == []


def test_an_empty_date_does_not_hide_one_under_another_name():
    assert Memory.of({"text": "a", "valid_from": "", "start_date": "2024"}).occurred_start == Moment(2024)
