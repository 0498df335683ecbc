from dataclasses import replace

import numpy as np
import pytest

from mnemorank import InputError, Model, Options, Reranker
from mnemorank.artifact.manifest import PipelineWeights
from mnemorank.ranking.stages.entity_links import link_evidence, subject_of

QUERY = "Where was the director of Kiss and Tell born?"
FILM = "Kiss and Tell is a film of 1945, directed by Orlo Vantage after a play."
DIRECTOR = "Orlo Vantage grew up in Leeds, the third son of a clockmaker."
OTHER = "Marta Quill lives in Porto and keeps a bakery."
ODDS = np.array([2.0, -1.0, -0.9])


def test_a_memory_named_by_the_best_is_linked():
    film, director, other = link_evidence(QUERY, [FILM, DIRECTOR, OTHER], [FILM, DIRECTOR, OTHER], ODDS, 2.0)
    assert director > 0.05 > film
    assert other == 0


def test_weak_candidates_do_not_link():
    strong = link_evidence(QUERY, [FILM, DIRECTOR], [FILM, DIRECTOR], np.array([2.0, -1.0]), 1.0)[1]
    weak = link_evidence(QUERY, [FILM, DIRECTOR, OTHER], [FILM, DIRECTOR, OTHER], np.array([-4.0, -1.0, 2.0]), 1.0)[1]
    assert weak < strong / 100


def test_entities_of_the_query_are_not_second_hops():
    asked = f"{QUERY} Orlo Vantage, the third son of a clockmaker who grew up in Leeds?"
    assert link_evidence(asked, [FILM, DIRECTOR], [FILM, DIRECTOR], np.array([2.0, -1.0]), 1.0)[1] == 0


def test_links_are_found_in_the_matched_passage():
    part = "Kiss and Tell is a film of 1945."
    assert link_evidence(QUERY, [FILM, DIRECTOR], [part, DIRECTOR], np.array([2.0, -1.0]), 1.0)[1] == 0


def test_headings_are_subjects():
    assert subject_of("Orlo Vantage (director): He grew up in Leeds.") == (["orlo", "vantag"], 1.0)
    first_words, certainty = subject_of(DIRECTOR)
    assert first_words[:2] == ["orlo", "vantag"]
    assert certainty < 1
    titled = link_evidence(QUERY, [FILM, f"Orlo Vantage: {DIRECTOR}"], [FILM, DIRECTOR], np.array([2.0, -1.0]), 1.0)
    assert titled[1] > link_evidence(QUERY, [FILM, DIRECTOR], [FILM, DIRECTOR], np.array([2.0, -1.0]), 1.0)[1]


def test_a_heading_named_in_the_query_is_a_first_hop():
    headed = [
        "Kiss and Tell: A film of 1945.",
        "Marta Quill: She keeps a bakery in Porto.",
        "Kiss and Tell ran for a year.",
    ]
    links = link_evidence(QUERY, headed, headed, np.zeros(3), 2.0)
    assert links[0] > 0.3
    assert links[1] == 0
    assert links[2] < links[0] / 5


def test_first_hops_link_further():
    texts = [f"Kiss and Tell: {FILM}", f"Orlo Vantage: {DIRECTOR}", "Porto: Marta Quill lives there."]
    odds = np.array([-1.0, -1.0, 1.0])
    assert link_evidence(QUERY, texts, texts, odds, 9.0)[1] > 20 * link_evidence(QUERY, texts, texts, odds, 1.0)[1] > 0


def test_one_word_headings_count_less():
    texts = ["Update: Ana moved.", "Porto Travel: Ana flew."]
    one, two = (
        link_evidence(query, texts, texts, np.zeros(2), 1.0).max() for query in ("Any update?", "Porto travel?")
    )
    assert 0 < one < two * 0.6


def test_shared_headings_are_not_first_hops():
    turns = [f"Marta: I saw film number {n}." for n in range(30)]
    links = link_evidence("Which films did Marta see?", turns, turns, np.zeros(30), 1.0)
    assert links.max() < 0.01


def test_speaker_roles_are_not_subjects():
    assert subject_of(f"user: {DIRECTOR}") == subject_of(f"Assistant:\n{DIRECTOR}") == subject_of(DIRECTOR)
    assert subject_of("user: Orlo Vantage: he grew up in Leeds.") == (["orlo", "vantag"], 1.0)
    turns = ["user: I moved to Bern", "The user has moved to Bern", "a cat"]
    spoken, noted, _ = link_evidence("where does the user live", turns, turns, np.array([1.0, 1.0, -2.0]), 4.0)
    assert spoken == pytest.approx(noted, abs=0.5)


def test_entities_shared_by_all_do_not_link():
    crowd = [FILM] + [f"Orlo Vantage and the number {n} of his cats." for n in range(8)]
    odds = np.array([2.0] + [-1.0] * 8)
    assert link_evidence(QUERY, crowd, crowd, odds, 1.0)[1:].max() < 0.1


@pytest.mark.parametrize("texts", [[], [FILM], ["", ""], [FILM, FILM]])
def test_small_empty_and_equal_pools(texts):
    links = link_evidence(QUERY, texts, texts, np.zeros(len(texts)), 1.0)
    assert len(links) == len(texts)
    assert np.isfinite(links).all()


def test_links_raise_the_score_not_relevance(tiny_onnx):
    model = Model.load(tiny_onnx)
    memories = [FILM, DIRECTOR, OTHER]
    plain = Reranker(model).rerank(QUERY, memories, explain=True)
    linked = Reranker(
        replace(model, manifest=replace(model.manifest, weights=PipelineWeights(entity_links=3.0)))
    ).rerank(QUERY, memories, explain=True)
    off = Reranker(
        replace(model, manifest=replace(model.manifest, weights=PipelineWeights(entity_links=3.0))),
        options=Options(weights={"entity_links": 0}),
    ).rerank(QUERY, memories)

    def by_index(ranking):
        return sorted(ranking.results, key=lambda r: r.index)

    assert [r.score for r in off.results] == [r.score for r in plain.results]
    for before, after in zip(by_index(plain), by_index(linked), strict=True):
        assert after.relevance == before.relevance
        assert (after.score > before.score) == (after.factors["entity_links"] > 0)
    assert any(r.factors["entity_links"] > 0 for r in linked.results)


def test_a_negative_weight_is_rejected():
    with pytest.raises(InputError, match=r"weights\.entity_links"):
        Options(weights={"entity_links": -1})


def test_long_queries_reduce_the_default_link_weight(tiny_onnx):
    model = Model.load(tiny_onnx)
    manifest = replace(
        model.manifest,
        weights=PipelineWeights(entity_links=3.0),
        long_query_terms=2,
    )
    short = replace(model, manifest=replace(manifest, long_query_terms=None))
    weighed = Options(weights={"entity_links": 3.0})

    def links(model, options=None):
        ranking = Reranker(model, options=options).rerank(QUERY, [FILM, DIRECTOR, OTHER], explain=True)
        return sum(result.factors["entity_links"] for result in ranking)

    long = replace(model, manifest=manifest)
    assert 0 < links(long) < links(short)
    assert links(long, weighed) == links(short)


def test_copies_do_not_link_to_each_other():
    texts = ["Mara Quill: she was born in Lisbon.", "Greta Holm: she was born near Oslo.", OTHER]
    alone = link_evidence("Where was she born?", texts, texts, np.array([2.0, 2.1, -1.0]), 4.0)
    twice = link_evidence(
        "Where was she born?", [*texts, texts[0]], [*texts, texts[0]], np.array([2.0, 2.1, -1.0, 2.0]), 4.0
    )
    assert twice[:3] == pytest.approx(alone)
    assert twice[3] == twice[0]
