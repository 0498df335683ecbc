import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank.ranking.excerpts import excerpts


def test_every_two_sentences_that_follow_each_other():
    assert excerpts("Ruby moved. She works at Aurora. It pays well! Does she like it?") == [
        "Ruby moved. She works at Aurora.",
        "She works at Aurora. It pays well!",
        "It pays well! Does she like it?",
    ]


@pytest.mark.parametrize("text", ["", "One.", "One. Two.", "no end of it", "Heading: One. Two."])
def test_a_text_of_two_sentences_is_an_excerpt_itself(text):
    assert excerpts(text) == []


def test_the_heading_goes_with_each():
    found = excerpts("Orlo Vantage: He was born in Oslo. He sang. He died in Rome.")
    assert found == ["Orlo Vantage: He was born in Oslo. He sang.", "Orlo Vantage: He sang. He died in Rome."]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It grew by 3.5 percent. It fell, e.g. in May. It rose.", 2),
        ('He said "Go!" Then he left. "Why?" she asked. Nobody knew.', 3),
        ("one line\nanother line\n\na third line", 2),
        ("彼女は東京に住む。彼は京都に住む。二人は会った。", 2),
    ],
)
def test_where_sentences_end(text, count):
    assert len(excerpts(text)) == count


@given(st.lists(st.sampled_from(["Ada sang.", "Was it late?", "No!", "It cost 2.50 in all.", "x"]), max_size=12))
def test_nothing_is_left_out(sentences):
    text = " ".join(sentences)
    found = excerpts(text)
    if found:
        assert all(excerpt in text for excerpt in found)
        assert set(" ".join(found).split()) == set(text.split())
