"""The bundled dataset `everyday`."""

from itertools import combinations

import pytest

from mnemorank.data.benchmarks import loaders
from mnemorank.data.bundled import bundled_dataset

SIZES = {"train": (53, 10230), "dev": (4, 768), "test": (4, 768), "plain-dev": (1, 151), "plain-test": (1, 151)}


@pytest.fixture(scope="module")
def examples():
    read = loaders["everyday"].read
    return {split: list(read(bundled_dataset("everyday", split))) for split in SIZES}


@pytest.mark.parametrize("split", SIZES)
def test_sizes(examples, split):
    authors = {example.group.split("/")[0] for example in examples[split]}
    assert (len(authors), len(examples[split])) == SIZES[split]


def test_no_author_and_no_memory_is_in_two_splits(examples):
    for part in (
        lambda example: {example.group.split("/")[0]},
        lambda example: {memory.text for memory in example.memories},
    ):
        seen = [set().union(*(part(example) for example in examples[split])) for split in SIZES]
        assert all(not first & second for first, second in combinations(seen, 2))
