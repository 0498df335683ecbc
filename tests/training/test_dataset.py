from __future__ import annotations

import math

import pytest

from mnemorank.artifact.manifest import Manifest
from mnemorank.data.examples import Candidate, Example
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.dataset import drop_long_queries, prepare_lists
from mnemorank.training.evaluation import NetworkScorer
from tests.conftest import build_tokenizer


@pytest.fixture
def reader():
    manifest = Manifest("x", format="hindsight-2", max_length=40)
    writer = InputWriter(build_tokenizer(), manifest)
    return Model(manifest, NetworkScorer(None, writer, "x"))  # encoding needs no network


def example(*candidates, query="where does ruby work", name="1"):
    return Example(name, query, tuple(Candidate(Memory.of(m), label) for m, label in candidates), source="test")


def test_memories_are_written_in_the_format_of_the_model(reader):
    dated = {"text": "ruby works at aurora", "occurred_start": "2024-01-01", "type": "world"}
    data = prepare_lists([example((dated, 1.0), ("a cat", 0.0))], reader, needs_contrast=True)

    written = "[Start: January 01, 2024 (2024-01-01)] [End: ongoing] [World] ruby works at aurora"
    assert data.lists[0].passages[0].text == written
    assert data.lists[0].labels == (1.0, 0.0)


def test_a_long_memory_is_represented_by_the_window_that_fits_the_query(reader):
    filler = "the cat and the dog in lisbon on a trip. " * 20
    long = filler + "ruby works at aurora labs. " + filler
    data = prepare_lists([example((long, 1.0), ("a cat", 0.0))], reader, needs_contrast=True)

    assert data.windowed == 1
    assert "ruby works at aurora" in data.lists[0].passages[0].text
    assert data.lists[0].passages[0].length <= reader.scorer.room("where does ruby work")


def test_queries_that_leave_no_room_for_a_memory_are_dropped_and_reported():
    writer = InputWriter(build_tokenizer(), Manifest("x", max_length=40))
    fits, long = example(("a cat", 1.0)), example(("a cat", 1.0), query="where does ruby work now " * 8, name="2")
    messages = []
    assert drop_long_queries([fits, long], writer, messages.append, "train") == [fits]
    assert [message.split(":")[0] for message in messages] == ["train"]
    assert "1 of 2" in messages[0]
    with pytest.raises(InputError) as caught:
        drop_long_queries([long], writer, messages.append, "train")
    assert (caught.value.field, caught.value.code) == ("train", "too_long")
    assert drop_long_queries([], writer, messages.append, "dev") == []


def test_training_needs_examples(reader):
    with pytest.raises(InputError) as caught:
        prepare_lists([], reader, needs_contrast=True)
    assert caught.value.field == "data"


def test_lists_of_equal_labels_are_dropped_only_for_losses_that_compare(reader):
    one = example(("ruby works", 1.0))
    two = example(("ruby works", 1.0), ("a cat", 0.0), name="2")
    assert prepare_lists([one, two], reader, needs_contrast=True).dropped == 1
    assert prepare_lists([one, two], reader, needs_contrast=False).dropped == 0
    with pytest.raises(InputError) as caught:
        prepare_lists([one], reader, needs_contrast=True)
    assert caught.value.field == "data"


def test_labels_must_not_all_be_zero(reader):
    with pytest.raises(InputError) as caught:
        prepare_lists([example(("a", 0.0), ("b", 0.0))], reader, needs_contrast=False)
    assert caught.value.field == "data"


def test_conflicting_labels_name_query_text_and_examples(reader):
    with pytest.raises(InputError, match=r"test 2: .*test 1: .*where does ruby work.*a cat") as caught:
        prepare_lists(
            [example(("ruby", 1.0), ("a cat", 0.0)), example(("a cat", 1.0), ("x", 0.0), name="2")],
            reader,
            needs_contrast=True,
        )
    assert (caught.value.field, caught.value.code) == ("data", "label_conflict")


def test_a_label_in_between_does_not_hide_conflicting_labels(reader):
    examples = [example(("a cat", label), ("ruby", 0.2), name=str(label)) for label in (0.5, 1.0, 0.0)]
    with pytest.raises(InputError, match=r"test 0\.0: .*test 1\.0") as caught:
        prepare_lists(examples, reader, needs_contrast=True)
    assert caught.value.code == "label_conflict"


def test_the_same_text_with_other_dates_is_not_a_conflict(reader):
    then = {"text": "ruby works at zenith", "occurred_start": "2020", "occurred_end": "2021"}
    now = {"text": "ruby works at zenith", "occurred_start": "2022"}
    assert prepare_lists([example((then, 0.0), (now, 1.0))], reader, needs_contrast=True).lists


def test_teacher_scores_come_from_the_metadata(reader):
    scored = {"text": "ruby", "teacher_score": 2.5}
    first = prepare_lists([example((scored, 1.0), ("a cat", 0.0))], reader, needs_contrast=True).lists[0]
    assert first.teacher_scores[0] == 2.5
    assert math.isnan(first.teacher_scores[1])
