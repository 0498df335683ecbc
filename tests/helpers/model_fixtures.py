from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers import tiny_models

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torch-models")


@pytest.fixture(scope="session")
def bert(folders: Path) -> Path:
    return tiny_models.bert(folders / "bert")


@pytest.fixture(scope="session")
def deberta(folders: Path) -> Path:
    return tiny_models.deberta(folders / "deberta")


@pytest.fixture(scope="session")
def qwen_causal(folders: Path) -> Path:
    return tiny_models.qwen_causal(folders / "qwen-causal")


@pytest.fixture(scope="session")
def qwen_classifier(folders: Path) -> Path:
    return tiny_models.qwen_classifier(folders / "qwen-classifier", pad_token=None)


@pytest.fixture(scope="session")
def adapters(folders: Path, qwen_classifier: Path) -> tuple[Path, Path]:
    """Two LoRA adapters of one base."""
    return (
        tiny_models.adapter(folders / "adapter-support", qwen_classifier, seed=1),
        tiny_models.adapter(folders / "adapter-travel", qwen_classifier, seed=2),
    )


@pytest.fixture(scope="session")
def split_torch(folders: Path) -> Path:
    return tiny_models.split_encoder(folders / "split-torch")


@pytest.fixture(scope="session")
def split_onnx(folders: Path, split_torch: Path) -> Path:
    """A split encoder as it is shipped: three INT8 graphs that share their weights."""
    from mnemorank.export.exporter import export

    return export(split_torch, folders / "split-onnx", "int8").path
