"""What is prepared: every passage that any query could read."""

import random

import numpy as np
import pytest

from mnemorank import InputError, Memory, Model
from mnemorank.model.lazy import LazyModel
from mnemorank.model.passages import PassageReader
from tests.conftest import WORDS

QUERIES = ["ruby", "where does ruby work now", "the trip to lisbon in march", "database migration plan python", "?"]


def sentences(count, seed):
    generator = random.Random(seed)
    return " ".join(" ".join(generator.choices(WORDS, k=generator.randint(3, 14))) + "." for _ in range(count))


MEMORIES = [
    Memory("ruby works at aurora labs", occurred_start="2024-03"),
    Memory(sentences(4, 1)),
    Memory(sentences(12, 2), context="a plan"),
    Memory(sentences(80, 3), occurred_start="2024-03", occurred_end="2025-01"),
    Memory("\n".join(f"{'user' if i % 2 else 'assistant'}: {sentences(1 + 5 * (i % 3), i)}" for i in range(40))),
    Memory("\n".join(f"{'user' if i % 2 else 'assistant'}: {sentences(60, i)}" for i in range(20))),
    Memory(sentences(1500, 5)),
    Memory(sentences(20, 6), context=sentences(30, 7)),
    Memory("cat" * 500),
    Memory(" "),
]


@pytest.fixture(scope="module")
def model(split_onnx):
    model = Model.load(split_onnx, threads=1)
    yield model
    model.close()


@pytest.mark.parametrize("number", range(len(MEMORIES)))
def test_all_passages_that_a_query_reads_are_prepared(model, number):
    reader = PassageReader.create(model.scorer, model.manifest, None)
    prepared = {each.passage.text for each in reader.read([MEMORIES[number]])}
    for query in QUERIES:
        read = {each.passage.text for each in model.passages(query, [MEMORIES[number]])}
        assert read <= prepared
        assert bool(read) == bool(MEMORIES[number].text.strip())


def test_nothing_is_encoded_twice(split_onnx, tmp_path, monkeypatch):
    with_states = Model.load(split_onnx, threads=1, states=tmp_path)
    assert with_states.prepare(MEMORIES).new == len(MEMORIES) - 1
    with_states.close()
    again = Model.load(split_onnx, threads=1, states=tmp_path)
    encoded = []
    encode = type(again.scorer)._encode
    monkeypatch.setattr(
        type(again.scorer), "_encode", lambda self, ids, first: encoded.append(first) or encode(self, ids, first)
    )
    for query in QUERIES:
        again.score(query, MEMORIES)
    again.close()
    assert set(encoded) == {0}  # queries only


def test_scores_are_the_same_prepared_or_not(split_onnx, model, tmp_path):
    fresh = Model.load(split_onnx, cache_megabytes=0)
    prepared = Model.load(split_onnx, states=tmp_path)
    prepared.prepare(MEMORIES)
    stored = Model.load(split_onnx, states=tmp_path, cache_megabytes=0)
    for query in QUERIES:
        expected = fresh.score(query, MEMORIES).raw
        for other in (model, prepared, stored):
            assert np.array_equal(other.score(query, MEMORIES).raw, expected, equal_nan=True)
    for each in (fresh, prepared, stored):
        each.close()


def test_counts(split_onnx, tmp_path):
    memories = MEMORIES[:4]
    with_states = Model.load(split_onnx, states=tmp_path)
    first = with_states.prepare(memories[:2])
    second = with_states.prepare([*memories, Memory("")])
    with_states.close()
    assert (first.new, first.known, first.not_stored) == (2, 0, 0)
    assert (second.new, second.known, second.not_stored) == (2, 3, 0)


def test_what_was_only_in_memory_is_stored(split_onnx, tmp_path):
    with_states = Model.load(split_onnx, states=tmp_path)
    with_states.state_file.put = lambda states: None  # as if all writes in the background had failed
    with_states.score("ruby", MEMORIES[:2])
    assert with_states.prepare(MEMORIES[:2]).new == 2
    with_states.close()
    again = Model.load(split_onnx, states=tmp_path)
    assert again.prepare(MEMORIES[:2]).known == 2
    again.close()


def test_without_a_folder_the_cache_is_filled(split_onnx):
    model = Model.load(split_onnx)
    assert model.prepare(MEMORIES[:3]).new == 3
    assert model.prepare(MEMORIES[:3]).known == 3
    model.close()


def test_scored_memories_are_kept(split_onnx, tmp_path):
    first = Model.load(split_onnx, states=tmp_path)
    first.score("ruby", MEMORIES[:2])
    first.close()
    second = Model.load(split_onnx, states=tmp_path)
    assert second.prepare(MEMORIES[:2]).known == 2
    second.close()


def test_lazy_models_prepare(split_onnx, tmp_path):
    lazy = LazyModel(split_onnx, states=tmp_path)
    assert lazy.prepare(MEMORIES[:2]).new == 2
    lazy.close()


def test_other_models_say_that_they_are_not_split(folder, tmp_path):
    with pytest.raises(InputError) as raised:
        Model.load(folder, states=tmp_path / "states")
    assert (raised.value.field, raised.value.code) == ("states", "not_split")
    assert not (tmp_path / "states").exists()
    with pytest.raises(InputError) as raised:
        Model.load(folder).prepare(MEMORIES)
    assert raised.value.code == "not_split"
