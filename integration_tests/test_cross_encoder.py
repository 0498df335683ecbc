"""CrossEncoder in place of sentence-transformers' class, in beir and in mteb."""

from __future__ import annotations

import inspect

import mteb
import pytest
from beir.reranking import Rerank
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.models_protocols import CrossEncoderProtocol
from sentence_transformers import CrossEncoder as TheirCrossEncoder

from mnemorank import CrossEncoder
from mnemorank.integrations.mteb import MnemorankModel
from shared import CAT, CURRENT, OLD, TEXTS

QUERIES = {"q1": "What is Ruby's cat called?", "q2": "Who leads a team?"}
CORPUS = {f"d{number}": {"title": "", "text": text} for number, text in enumerate(TEXTS)}


@pytest.mark.parametrize("name", ["predict", "rank"])
def test_the_arguments_of_sentence_transformers_are_accepted(name):
    theirs = inspect.signature(inspect.unwrap(getattr(TheirCrossEncoder, name))).parameters
    ours = inspect.signature(getattr(CrossEncoder, name)).parameters

    has_rest = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in ours.values())
    assert has_rest or theirs.keys() <= ours.keys()
    assert {"batch_size", "show_progress_bar", "activation_fn", "prompt"} <= ours.keys()


def test_beir_reranks():
    results = {query: dict.fromkeys(CORPUS, 0.5) for query in QUERIES}
    reranked = Rerank(CrossEncoder(), batch_size=16).rerank(CORPUS, QUERIES, results, top_k=100)

    assert max(reranked["q1"], key=reranked["q1"].get) == "d1"
    assert max(reranked["q2"], key=reranked["q2"].get) == "d2"


class RubyRetrieval(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="RubyRetrieval",
        dataset={"path": "none", "revision": "1"},
        description="The README's example",
        type="Retrieval",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self, **_):
        self.dataset = {
            "default": {
                "test": {
                    "corpus": Dataset.from_list([{"id": key, **document} for key, document in CORPUS.items()]),
                    "queries": Dataset.from_list([{"id": key, "text": text} for key, text in QUERIES.items()]),
                    "relevant_docs": {"q1": {"d1": 1}, "q2": {"d2": 1}},
                    "top_ranked": {query: list(CORPUS) for query in QUERIES},
                }
            }
        }
        self.data_loaded = True


def test_mteb_evaluates(tmp_path):
    model = MnemorankModel("mnemorank/mini")
    assert isinstance(model, CrossEncoderProtocol)
    result = mteb.evaluate(model, RubyRetrieval(), cache=None, prediction_folder=tmp_path)

    assert result.task_results[0].get_score() == 1.0
    assert result.model_name == "mnemorank/mini"


def test_the_metadata_of_the_model():
    metadata = MnemorankModel().mteb_model_meta

    assert (metadata.name, metadata.model_type) == ("mnemorank/mini", ["cross-encoder"])
    assert metadata.training_datasets == {"LongMemEval", "MedicalQARetrieval"}
    assert metadata.loader is MnemorankModel
    assert metadata.loader(metadata.name, revision=metadata.revision).mteb_model_meta == metadata


def test_texts():
    ranking = CrossEncoder().rank("What is Ruby's cat called?", [OLD, CURRENT, CAT], top_k=1, return_documents=True)
    assert ranking[0]["text"] == CAT
