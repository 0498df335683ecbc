"""The tables of the docs are complete: what the code knows by name is on the page that lists it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from mnemorank import Failover, Options, Reranker
from mnemorank.artifact.manifest import Manifest, PipelineWeights
from mnemorank.artifact.templates import templates
from mnemorank.memory.records import ALIASES
from mnemorank.scorers.onnx import OnnxScorer
from mnemorank.scorers.remote.scorer import RemoteScorer

DOCS = Path(__file__).parents[2] / "docs"
_CODE = re.compile(r"`([^`]+)`")
# Read now, since audits add templates of their own while they run.
TEMPLATES = tuple(templates)
# Where the plugins of a kind are kept, and the page that lists them.
PLUGINS = (
    ("mnemorank.artifact.formats", "formats", "reference/manifest.md"),
    ("mnemorank.scorers.remote.dialects", "dialects", "guides/models.md"),
    ("mnemorank.data.benchmarks", "loaders", "guides/evaluation.md"),
    ("mnemorank.evaluation.audits", "audits", "guides/evaluation.md"),
    ("mnemorank.evaluation.baselines", "baselines", "guides/evaluation.md"),
    ("mnemorank.training.losses", "losses", "reference/recipe.md"),
)


def _words(page: str) -> set[str]:
    """The names in code font on a page, paths and dotted names also by their parts."""
    prose = re.sub(r"^ *```.*?^ *```", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    spans = [span.strip("…") for span in _CODE.findall(prose)]
    return {word for span in spans for word in (span, *re.split(r"[.,(){}=\[\]\s]+", span))}


def _missing(names: object, page: str) -> list[str]:
    return sorted(set(names) - _words(page))  # type: ignore[call-overload]


def test_options():
    assert not _missing((field.name for field in fields(Options)), "guides/options.md")


@pytest.mark.parametrize(
    ("function", "page"),
    [
        (Reranker.rerank, "guides/rerank.md"),
        (Failover, "guides/models.md"),
        (OnnxScorer, "guides/models.md"),
        (RemoteScorer, "guides/models.md"),
    ],
    ids=["rerank", "failover", "onnx", "remote"],
)
def test_keyword_arguments(function: Callable[..., object], page: str):
    parameters = inspect.signature(function).parameters.values()

    assert not _missing((each.name for each in parameters if each.kind is each.KEYWORD_ONLY), page)


def test_pipeline_weights():
    names = [field.name for field in fields(PipelineWeights)]

    assert not _missing(names, "guides/options.md")
    assert not _missing(names, "reference/manifest.md")


def test_fields_of_a_manifest():
    assert not _missing((field.name for field in fields(Manifest)), "reference/manifest.md")


def test_templates():
    assert not _missing(TEMPLATES, "reference/manifest.md")


def test_field_names_of_memories():
    assert not _missing((name for names in ALIASES.values() for name in names), "guides/memories.md")


@pytest.mark.parametrize(("module", "table", "page"), PLUGINS, ids=[table for _, table, _ in PLUGINS])
def test_plugins(module: str, table: str, page: str):
    assert not _missing(getattr(import_module(module), table), page)


def test_server_settings():
    assert not _missing(import_module("mnemorank.server").ServerSettings.model_fields, "guides/serving.md")


def test_metrics():
    metrics = import_module("mnemorank.server").create_app().state.metrics
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in metrics.registry.collect()
    }

    assert not _missing(families, "reference/http.md")


def test_http_routes():
    server = import_module("mnemorank.server")
    paths = server.create_app().openapi()["paths"]
    page = (DOCS / "reference/http.md").read_text(encoding="utf-8")

    assert not [path for path in paths if f"{path}`" not in page]


def test_keys_of_a_recipe():
    recipe = import_module("mnemorank.training.recipe")
    models = [value for value in vars(recipe).values() if isinstance(value, type) and hasattr(value, "model_fields")]
    names = {name for model in models for name in model.model_fields}

    assert not _missing(names, "reference/recipe.md")


def test_learning_settings():
    settings = import_module("mnemorank.learning.settings")
    models = [value for value in vars(settings).values() if isinstance(value, type) and hasattr(value, "model_fields")]

    assert not _missing({name for model in models for name in model.model_fields}, "reference/learning.md")
