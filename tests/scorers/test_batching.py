import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank.scorers.encoding import pack, pack_in_order

lengths = st.lists(st.integers(1, 300), max_size=60)


@given(lengths, st.integers(1, 2000), st.none() | st.integers(1, 10))
@pytest.mark.parametrize("packer", [pack, pack_in_order])
def test_every_position_once_and_within_the_budget(packer, lengths, budget, most):
    batches = packer(lengths, budget, most)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[p] for p in batch) * len(batch) <= budget
        assert most is None or len(batch) <= most


@given(lengths, st.integers(1, 2000))
def test_in_order_keeps_the_order(lengths, budget):
    assert [p for batch in pack_in_order(lengths, budget) for p in batch] == list(range(len(lengths)))


def test_like_lengths_go_together():
    assert pack([10, 100, 10, 100], 200) == [[1, 3], [0, 2]]


def test_a_budget_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="token_budget"):
        pack([1], 0)
