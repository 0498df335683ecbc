"""Tiny models of the real architectures, and small data with something to learn."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.conftest import WORDS, build_tokenizer

TOPICS = ["cat", "dog", "berlin", "lisbon", "python", "rust", "dentist", "database", "migration", "flight"]
torch.set_num_threads(1)


def write_bert(folder: Path) -> Path:
    """Write an encoder without a head, such as all-MiniLM."""
    folder.mkdir(parents=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=128,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        pad_token_id=0,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def write_causal(folder: Path) -> Path:
    """Write a Qwen3 language model whose tokenizer has the tokens yes and no, but no padding token."""
    folder.mkdir(parents=True)
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    letters = [chr(code) for code in range(33, 127)]
    pieces = dict.fromkeys([*special, "[UNK]", *WORDS, *letters])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=""))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.ByteLevel()
    tokenizer.add_special_tokens(special)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", unk_token="[UNK]", model_max_length=512
    ).save_pretrained(folder)
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        eos_token_id=2,
        bos_token_id=None,
        pad_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make_lists(count: int, seed: int, candidates: int = 5) -> list[dict]:
    """Return lists of memories about a topic; the relevant one says what is true now."""
    rng = random.Random(seed)
    lists = []
    for number in range(count):
        topic = rng.choice(TOPICS)
        labels = [1] + [0] * (candidates - 1)
        rng.shuffle(labels)
        lists.append(
            {
                "id": f"{seed}-{number}",
                "query": f"what about the {topic} {rng.choice(WORDS)} {rng.choice(WORDS)}",
                "group": f"{seed}-{number}",
                "source": "topics",
                "candidates": [
                    {
                        "text": f"she works at the {topic} {rng.choice(TOPICS)} " + ("now" if label else "before that"),
                        "label": label,
                    }
                    for label in labels
                ],
            }
        )
    return lists


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bases") / "bert")


@pytest.fixture(scope="session")
def tiny_causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal(tmp_path_factory.mktemp("bases") / "qwen3")


@pytest.fixture(scope="session")
def train_lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("data") / "train.jsonl", make_lists(48, seed=1))


@pytest.fixture(scope="session")
def dev_lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("data") / "dev.jsonl", make_lists(12, seed=2))


@pytest.fixture
def tables(tiny_bert: Path, train_lists: Path, dev_lists: Path) -> dict:
    return base_tables(tiny_bert, train_lists, dev_lists)


def base_tables(tiny_bert: Path, train_lists: Path, dev_lists: Path) -> dict:
    """Return a recipe that runs in a second, for tests to change."""
    return {
        "name": "tiny",
        "model": {"base": str(tiny_bert), "format": "plain", "max_length": 64},
        "train": {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3},
        "data": [{"path": str(train_lists), "format": "lists"}],
        "loss": [{"name": "softmax"}, {"name": "bce", "weight": 0.3}],
        "dev": {"data": [{"path": str(dev_lists), "format": "lists"}]},
    }
