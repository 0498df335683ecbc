from __future__ import annotations

import numpy as np
import pytest

from mnemorank.data.retrieval import StemmedBM25, bm25_index, load_retriever
from mnemorank.errors import InputError


def test_bm25_scores_shared_words():
    scores = bm25_index(["snow on cats", "bread", "", "cats"])(["cats in snow", "zzz"])
    assert list(np.argsort(-scores[0])[:2]) == [0, 3]
    assert not scores[1].any()


@pytest.mark.slow
def test_a_bi_encoder_folder_is_a_retriever(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    from tests.training.conftest import write_bert

    module = Transformer(str(write_bert(tmp_path / "bert")))
    SentenceTransformer(modules=[module, Pooling(module.get_embedding_dimension())]).save(str(tmp_path / "bi"))
    scores = load_retriever(str(tmp_path / "bi"))(["the cat", "flight to lisbon"])(["the cat"])
    assert scores.shape == (1, 2)
    assert scores[0, 0] == pytest.approx(1.0, abs=1e-5)
    assert scores[0, 1] < scores[0, 0]


def test_an_unknown_retriever_is_an_error():
    with pytest.raises(InputError) as caught:
        load_retriever("nowhere")
    assert caught.value.field == "retriever"


def test_stemmed_bm25_matches_inflected_words():
    index = StemmedBM25(["she paints boats", "bread", "the painting"])
    assert index.search("painted", top_k=5)[0][0] in (0, 2)
    assert {position for position, _ in index.search("painted", top_k=5)} == {0, 2}
    assert index.search("the", top_k=5) == []
    assert index.search("zzz", top_k=5) == []
    assert [len(index.search("painted", top_k=1)), len(index.scores("zzz"))] == [1, 3]


@pytest.mark.parametrize("texts", [[], ["", "the"]])
def test_stemmed_bm25_of_a_corpus_without_words_finds_nothing(texts):
    index = StemmedBM25(texts)
    assert index.search("anything", top_k=3) == []
    assert index.scores("anything").tolist() == [0.0] * len(texts)
