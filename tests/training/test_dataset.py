from __future__ import annotations

import pytest

from mnemorank.artifact.manifest import Manifest
from mnemorank.data.examples import Candidate, Example
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.scorers.encoding import InputWriter
from mnemorank.training.dataset import prepare, that_fit
from mnemorank.training.evaluation import NetworkScorer
from tests.conftest import build_tokenizer


@pytest.fixture
def reader():
    manifest = Manifest("x", format="hindsight-2", max_length=40)
    writer = InputWriter(build_tokenizer(), manifest)
    return Model(manifest, NetworkScorer(None, writer, "x"))  # reading needs no network


def example(*candidates, query="where does ruby work", name="1"):
    return Example(name, query, tuple(Candidate(Memory.of(m), label) for m, label in candidates), source="test")


def test_lists_are_read_in_the_models_format(reader):
    dated = {"text": "ruby works at aurora", "occurred_start": "2024-01-01", "type": "world"}
    data = prepare([example((dated, 1.0), ("a cat", 0.0))], reader, ranking=True)

    written = "[Start: January 01, 2024 (2024-01-01)] [End: ongoing] [World] ruby works at aurora"
    assert data.lists[0].passages[0].text == written
    assert data.lists[0].labels == (1.0, 0.0)


def test_a_long_memory_is_read_by_the_window_that_fits_the_query(reader):
    filler = "the cat and the dog in lisbon on a trip. " * 20
    long = filler + "ruby works at aurora labs. " + filler
    data = prepare([example((long, 1.0), ("a cat", 0.0))], reader, ranking=True)

    assert data.windowed == 1
    assert "ruby works at aurora" in data.lists[0].passages[0].text
    assert data.lists[0].passages[0].length <= reader.scorer.room("where does ruby work")


def test_questions_that_leave_no_room_are_left_out_and_counted():
    writer = InputWriter(build_tokenizer(), Manifest("x", max_length=40))
    fits, long = example(("a cat", 1.0)), example(("a cat", 1.0), query="where does ruby work now " * 8, name="2")
    said = []
    assert that_fit([fits, long], writer, said.append, "train") == [fits]
    assert said == ["train: left out 1 of 2, questions too long for max_length 40"]
    with pytest.raises(InputError, match="no question leaves room for a memory in 40 tokens"):
        that_fit([long], writer, said.append, "train")
    assert that_fit([], writer, said.append, "dev") == []


def test_no_examples(reader):
    with pytest.raises(InputError, match="data: there is no example to train on"):
        prepare([], reader, ranking=True)


def test_lists_without_a_contrast_are_dropped_only_for_ranking(reader):
    one = example(("ruby works", 1.0))
    two = example(("ruby works", 1.0), ("a cat", 0.0), name="2")
    assert prepare([one, two], reader, ranking=True).dropped == 1
    assert prepare([one, two], reader, ranking=False).dropped == 0
    with pytest.raises(InputError, match="no example has both a relevant and an irrelevant candidate"):
        prepare([one], reader, ranking=True)


def test_all_labels_zero(reader):
    with pytest.raises(InputError, match="every label is 0"):
        prepare([example(("a", 0.0), ("b", 0.0))], reader, ranking=False)


def test_contradictory_labels_name_query_text_and_places(reader):
    with pytest.raises(InputError, match=r"test 2: .*test 1: .*where does ruby work.*a cat") as caught:
        prepare(
            [example(("ruby", 1.0), ("a cat", 0.0)), example(("a cat", 1.0), ("x", 0.0), name="2")],
            reader,
            ranking=True,
        )
    assert (caught.value.field, caught.value.code) == ("data", "label_conflict")


def test_a_grade_between_them_does_not_hide_contradictory_labels(reader):
    given = [example(("a cat", label), ("ruby", 0.2), name=str(label)) for label in (0.5, 1.0, 0.0)]
    with pytest.raises(InputError, match=r"test 0.0: .*test 1.0"):
        prepare(given, reader, ranking=True)


def test_the_same_text_with_other_dates_is_no_contradiction(reader):
    then = {"text": "ruby works at zenith", "occurred_start": "2020", "occurred_end": "2021"}
    now = {"text": "ruby works at zenith", "occurred_start": "2022"}
    assert prepare([example((then, 0.0), (now, 1.0))], reader, ranking=True).lists


def test_teacher_scores_come_from_the_metadata(reader):
    taught = {"text": "ruby", "teacher_score": 2.5}
    first = prepare([example((taught, 1.0), ("a cat", 0.0))], reader, ranking=True).lists[0]
    assert first.teacher[0] == 2.5
    assert first.teacher[1] != first.teacher[1]  # NaN
