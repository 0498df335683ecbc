import pytest

from mnemorank.text import words as words_module
from mnemorank.text.words import stem, terms, words


def test_letters_keep_their_marks():
    assert words("मेरी बेटी") == ["मेरी", "बेटी"]
    assert words("cafe\u0301 Ann's") == ["café", "ann's"]


def test_stems():
    assert stem("running") == stem("runs") == "run"
    assert stem("studies") == stem("study")
    assert stem("classes") == stem("class")
    assert stem("bus") == "bus"


def test_terms_leave_out_stopwords_unless_there_is_nothing_else():
    assert terms("Where is the cat?") == ["cat"]
    assert terms("who was that?") == [stem("who"), stem("was"), stem("that")]


@pytest.fixture
def empty_cache():
    words_module._cached_stem.cache_clear()
    yield words_module._cached_stem
    words_module._cached_stem.cache_clear()


def test_long_words_of_requests_are_not_kept(empty_cache):
    long_words = [f"{number}{'na' * 5_000}ing" for number in range(20)]
    assert all(stem(word) == word.removesuffix("ing") for word in long_words)
    assert empty_cache.cache_info().currsize == 0


def test_the_stem_cache_is_bounded_in_bytes(empty_cache):
    """Its longest entries, of the widest characters, take less than 16 MB."""
    longest = words_module._MAX_CACHED_LENGTH
    bytes_per_entry = 2 * (longest * 4 + 80) + 200  # a key, a value, and the cache's own node
    assert empty_cache.cache_info().maxsize * bytes_per_entry < 16 * 2**20
    for number in range(words_module._CACHED_WORDS + 100):
        stem(f"word{number}")
    assert empty_cache.cache_info().currsize == empty_cache.cache_info().maxsize
