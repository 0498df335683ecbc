import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank.text.sentences import excerpts, sentence_starts, split_sentences

MOVED, WORKS, PAYS, LIKES = SENTENCES = (
    "Ruby moved to Porto in the spring.",
    "She works at Aurora by the river now.",
    "It pays well, which surprised us all!",
    "Does she like it there in the winter?",
)


def test_excerpts_are_two_consecutive_sentences():
    assert excerpts(" ".join(SENTENCES)) == [f"{MOVED} {WORKS}", f"{WORKS} {PAYS}", f"{PAYS} {LIKES}"]


@pytest.mark.parametrize(
    "text", ["", " \n ", MOVED, f"{MOVED} {WORKS}", "no end of it " * 40, f"Ruby: {MOVED} {WORKS}"]
)
def test_a_text_of_up_to_two_sentences_has_no_excerpts(text):
    assert excerpts(text) == []


def test_each_excerpt_repeats_the_heading():
    assert excerpts(f"Ruby Lane: {MOVED} {WORKS}\n{PAYS}") == [
        f"Ruby Lane: {MOVED} {WORKS}",
        f"Ruby Lane: {WORKS} {PAYS}",
    ]


def test_a_sentence_has_the_speaker_of_its_turn_as_heading():
    assert excerpts(f"user: {MOVED}\nassistant: {WORKS}\n{PAYS}\nuser: {LIKES}") == [
        f"user: {MOVED}\nassistant: {WORKS}",
        f"assistant: {WORKS} {PAYS}",
        f"assistant: {PAYS}\nuser: {LIKES}",
    ]


def test_a_heading_does_not_contain_the_end_of_a_sentence():
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
def test_number_of_excerpts(text, count):
    assert len(excerpts(text)) == count


@given(st.lists(st.sampled_from([*SENTENCES, "No!", "It cost 2.50 in all.", "x"]), max_size=12))
def test_excerpts_cover_the_text(sentences):
    text = " ".join(sentences)
    parts = excerpts(text)
    if parts:
        assert all(part in text for part in parts)
        assert set(" ".join(parts).split()) == set(text.split())


def test_split_sentences():
    assert split_sentences(" ".join(SENTENCES)) == list(SENTENCES)
    assert split_sentences(f"{MOVED}\n\n{WORKS}") == [MOVED, WORKS]
    assert split_sentences(f"No! {MOVED} Dr. Lane: {WORKS}") == [f"No! {MOVED}", f"Dr. Lane: {WORKS}"]
    assert split_sentences("") == split_sentences(" \n ") == []


def test_sentence_starts():
    text = "One. Two!\nthree\n\nfour."
    assert [text[start:] for start in sentence_starts(text)] == [
        text,
        "Two!\nthree\n\nfour.",
        "three\n\nfour.",
        "four.",
    ]
    assert sentence_starts("") == sentence_starts("One. ") == [0]
