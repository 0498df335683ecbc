"""What all adapters share, on objects with the shapes of the frameworks."""

from __future__ import annotations

import asyncio
import importlib
import logging
import pkgutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import mnemorank.integrations
from mnemorank import Memory, Options, Reranker, ScorerError
from mnemorank.integrations.adapter import Adapter

QUERY = "Where does Ruby work now?"
OLD = "Ruby joined Zenith as a data engineer."
CAT = "Ruby's cat is called Miso."
CURRENT = "Ruby leads the memory team at Aurora Labs."


def _pool(make):
    return [make(OLD, {"valid_from": "2023-01"}), make(CAT, {}), make(CURRENT, {"valid_from": "2024-03"})]


SHAPES = {
    "LangChain": lambda text, dates: SimpleNamespace(id=None, page_content=text, metadata=dates),
    "LlamaIndex": lambda text, dates: SimpleNamespace(node_id="n", text=text, metadata=dates, score=None),
    "Haystack": lambda text, dates: SimpleNamespace(id="h", content=text, meta=dates, score=None),
    "agno": lambda text, dates: SimpleNamespace(id="a", content=text, meta_data=dates, reranking_score=None),
    "Graphiti": lambda text, dates: SimpleNamespace(uuid="e", fact=text, valid_at=dates.get("valid_from")),
    "mem0": lambda text, dates: {"id": "m", "memory": text, "metadata": dates, "score": None},
    "MemOS": lambda text, dates: SimpleNamespace(id="m", memory=text, metadata=SimpleNamespace(**dates)),
    "CrewAI": lambda text, dates: SimpleNamespace(record=SimpleNamespace(content=text, metadata=dates), score=None),
    "autogen": lambda text, dates: SimpleNamespace(content=text, mime_type="text/plain", metadata=dates),
    "LangGraph": lambda text, dates: SimpleNamespace(namespace=("u",), key="k", value={"text": text, **dates}),
}


class Recorder(Reranker):
    """Remembers the pools it ranked and the threads it ran in."""

    def __init__(self):
        super().__init__()
        self.pools, self.threads = [], []

    def rerank(self, query, memories, **arguments):
        self.pools.append(list(memories))
        self.threads.append(threading.get_ident())
        return super().rerank(query, memories, **arguments)


@pytest.fixture(scope="module")
def mini():
    return Recorder()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_dates_of_every_shape_reach_the_model(mini, shape):
    memories = [Memory(OLD, occurred_start="2023-01"), Memory(CAT), Memory(CURRENT, occurred_start="2024-03")]

    ranking = Adapter(mini).rank(QUERY, _pool(SHAPES[shape]))

    assert [ranked.index for ranked in ranking] == [2, 0, 1]
    assert [ranked.relevance for ranked in ranking] == [result.relevance for result in mini.rerank(QUERY, memories)]


def test_a_storage_date_is_enough_to_find_the_current_fact(mini):
    records = [{"memory": OLD, "created_at": "2023-01"}, {"memory": CAT}, {"memory": CURRENT, "created_at": "2024-03"}]

    assert [ranked.index for ranked in Adapter(mini).rank(QUERY, records)] == [2, 0, 1]


@pytest.mark.parametrize("name", ["topic", "key"])
def test_a_key_counts_only_if_the_caller_names_it(mini, name):
    pool = [
        SimpleNamespace(page_content=OLD, metadata={name: "job", "valid_from": "2023"}),
        SimpleNamespace(page_content=CURRENT, metadata={name: "job", "valid_from": "2024"}),
    ]

    assert [ranked.stale for ranked in Adapter(mini).rank(QUERY, pool)] == [False, False]
    assert [ranked.stale for ranked in Adapter(mini, key=name).rank(QUERY, pool)] == [False, True]


def test_scores_decrease_strictly_also_below_what_the_model_scored(mini):
    ranking = Adapter(mini, options=Options(max_scored=1)).rank(QUERY, [OLD, CAT, CURRENT, "", "Ruby."])

    scores = [ranked.score for ranked in ranking]
    assert all(score > 0 for score in scores)
    assert sorted(set(scores), reverse=True) == scores
    assert [ranked.relevance is None for ranked in ranking] == [False, True, True, True, True]


class _Broken:
    def score(self, *_, **__):
        raise ScorerError("no model")

    def close(self):
        """Nothing to release."""


def test_without_a_model_the_order_is_the_first_stages_and_there_are_no_scores(caplog):
    adapter = Adapter(Reranker(_Broken()))

    with caplog.at_level(logging.WARNING):
        ranking = adapter.rank(QUERY, [("a", 0.1), ("b", 0.9)])
    assert [(ranked.index, ranked.score) for ranked in ranking] == [(1, None), (0, None)]
    assert "no model" in caplog.text
    with pytest.raises(ScorerError):
        adapter.score_pairs([("a", "b")])


def test_problems_of_the_data_are_logged(mini, caplog):
    with caplog.at_level(logging.WARNING):
        Adapter(mini).rank(
            "a", [{"text": "a", "created_at": "soon"}, SimpleNamespace(text="b", createdAt="2024-03-05")]
        )

    assert [record.message.partition(": ")[0] for record in caplog.records] == [
        "memories.0.created_at",
        "memories.1.createdAt",
    ]


@pytest.mark.parametrize(("query", "pool"), [("", [OLD, CAT]), (" ", [OLD, CAT]), (QUERY, [])])
def test_an_empty_query_or_pool_loads_no_model(query, pool):
    ranking = Adapter("no/such/model").rank(query, pool, 1)

    assert [ranked.index for ranked in ranking] == list(range(len(pool)))[:1]


def test_async_ranks_in_another_thread(mini):
    ranking = asyncio.run(Adapter(mini).arank(QUERY, [OLD, CAT], 1))

    assert len(ranking) == 1
    assert mini.threads[-1] != threading.get_ident()


def test_pairs_of_several_queries_are_scored_in_order(mini):
    pairs = [("Who is Miso?", CAT), ("Where is Zenith?", CAT), ("Who is Miso?", OLD), ("", CAT)]
    scores = Adapter(mini).score_pairs(pairs)

    assert scores[0] > scores[2]
    assert scores[0] > scores[1]
    assert scores[3] == 0


FRAMEWORKS = sorted(module.name for module in pkgutil.iter_modules(mnemorank.integrations.__path__))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_is_named(name):
    missing = None
    try:
        importlib.import_module(f"mnemorank.integrations.{name}")
    except ModuleNotFoundError as error:
        missing = error.name
    assert missing is None or not missing.startswith("mnemorank")


def test_importing_the_package_imports_no_framework():
    code = (
        "import sys, mnemorank.integrations; print([m for m in sys.modules if m.startswith('mnemorank.integrations.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
