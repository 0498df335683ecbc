import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank.text.sentences import excerpts

MOVED, WORKS, PAYS, LIKES = SENTENCES = (
    "Ruby moved to Porto in the spring.",
    "She works at Aurora by the river now.",
    "It pays well, which surprised us all!",
    "Does she like it there in the winter?",
)


def test_every_two_sentences_that_follow_each_other():
    assert excerpts(" ".join(SENTENCES)) == [f"{MOVED} {WORKS}", f"{WORKS} {PAYS}", f"{PAYS} {LIKES}"]


@pytest.mark.parametrize(
    "text", ["", " \n ", MOVED, f"{MOVED} {WORKS}", "no end of it " * 40, f"Ruby: {MOVED} {WORKS}"]
)
def test_a_text_of_two_sentences_is_an_excerpt_itself(text):
    assert excerpts(text) == []


def test_the_heading_goes_with_each():
    assert excerpts(f"Ruby Lane: {MOVED} {WORKS}\n{PAYS}") == [
        f"Ruby Lane: {MOVED} {WORKS}",
        f"Ruby Lane: {WORKS} {PAYS}",
    ]


def test_a_sentence_is_under_the_speaker_of_its_own_turn():
    assert excerpts(f"user: {MOVED}\nassistant: {WORKS}\n{PAYS}\nuser: {LIKES}") == [
        f"user: {MOVED}\nassistant: {WORKS}",
        f"assistant: {WORKS} {PAYS}",
        f"assistant: {PAYS}\nuser: {LIKES}",
    ]


def test_words_before_a_colon_are_no_heading_if_a_sentence_ends_among_them():
    assert excerpts(f"Ruby moved. She said: {WORKS} {PAYS} {LIKES}")[-1] == f"{PAYS} {LIKES}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It grew by 3.5 percent in the first year. It fell, e.g. in May and in June. It rose again after that.", 2),
        (
            "Dr. Smith met Mr. Jones in the hall that day. 6. She saw neither of them come in. Nobody else knew of it.",
            2,
        ),
        (
            'He said "Go on without me, please!" Then he left us by the gate. "Why?" she asked. But nobody knew of it.',
            2,
        ),
        ("one line that is long enough\nanother line that is long enough\n\na third line that is long enough", 2),
        ("Он живёт в Москве много лет. Он работает в банке у реки. Его брат живёт в Казани.", 2),
        ("Elle est née à Nantes en mai. Élève brillante, elle partit. À Paris elle vit encore.", 2),
        ("彼女は長いあいだ東京の西にある小さな町で両親と一緒に住んでいた。" * 3, 2),
        ("A.\n" * 400, 399),
    ],
)
def test_where_sentences_end(text, count):
    assert len(excerpts(text)) == count


@given(st.lists(st.sampled_from([*SENTENCES, "No!", "It cost 2.50 in all.", "x"]), max_size=12))
def test_nothing_is_left_out(sentences):
    text = " ".join(sentences)
    found = excerpts(text)
    if found:
        assert all(excerpt in text for excerpt in found)
        assert set(" ".join(found).split()) == set(text.split())
