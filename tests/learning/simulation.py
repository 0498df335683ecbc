"""A simulation: a tiny real cross-encoder, and users with a preference that it does not know.

A memory has a topic, a quality word and a style word. The base model knows that good quality is relevant. The users
also prefer one of two styles, which the base model knows nothing about. They read from the top and often stop early.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import write_lists
from mnemorank.memory.memory import Memory

TOPICS = [f"topic{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]
ASPECTS = [f"aspect{a}{b}" for a in "abcdefg" for b in "abcdefg"]
GOOD, BAD = ["solid", "precise", "sound", "checked"], ["vague", "broken", "stale", "guessed"]
LIKED, DISLIKED = ["brief", "terse", "short", "compact"], ["lengthy", "wordy", "rambling", "verbose"]
FILLERS = ["red", "blue", "green", "north", "south", "east", "west", "paper"]
EXAMINED = (1.0, 0.75, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25)


def make_memory(rng: random.Random, query: str, good: bool, liked: bool, has_style: bool = True) -> Memory:
    words = [rng.choice(GOOD if good else BAD), rng.choice(FILLERS)]
    if has_style:
        words.append(rng.choice(LIKED if liked else DISLIKED))
    rng.shuffle(words)
    return Memory(f"{query} {' '.join(words)}")


def is_good(text: str) -> bool:
    return any(word in GOOD for word in text.split())


def is_bad(text: str) -> bool:
    return not is_good(text)


def is_preferred(text: str) -> bool:
    """The hidden preference of the users."""
    return is_good(text) and any(word in LIKED for word in text.split())


def make_pool(rng: random.Random, query: str) -> list[Memory]:
    """Eight memories: two that users prefer, two of good quality in the other style, four of bad quality."""
    kinds = [(True, True)] * 2 + [(True, False)] * 2 + [(False, True)] * 2 + [(False, False)] * 2
    memories = [make_memory(rng, query, good, liked) for good, liked in kinds]
    rng.shuffle(memories)
    return memories


def sample_queries(rng: random.Random, count: int) -> list[str]:
    return rng.sample([f"{topic} {aspect}" for topic in TOPICS for aspect in ASPECTS], count)


def preference_examples(seed: int, count: int) -> list[Example]:
    """Examples with the true preference of the users as labels."""
    rng = random.Random(seed)
    examples = []
    for number, query in enumerate(sample_queries(rng, count)):
        pool = make_pool(rng, query)
        candidates = tuple(Candidate(memory, float(is_preferred(memory.text))) for memory in pool)
        examples.append(Example(f"wish-{number}", query, candidates, group=query))
    return examples


def general_examples(seed: int, count: int) -> list[Example]:
    """Examples that every model should solve: good and bad quality, without a style."""
    rng = random.Random(seed)
    examples = []
    for number, query in enumerate(sample_queries(rng, count)):
        positives = [Candidate(make_memory(rng, query, True, True, has_style=False), 1.0) for _ in range(2)]
        negatives = [Candidate(make_memory(rng, query, False, True, has_style=False), 0.0) for _ in range(4)]
        examples.append(Example(f"general-{number}", query, (*positives, *negatives), group=query))
    return examples


@dataclass
class User:
    """A user who reads from the top and clicks what they prefer.

    :param noise: probability of clicking any other memory that they examine.
    """

    name: str
    rng: random.Random
    noise: float = 0.05
    prefers: Callable[[str], bool] = field(default=is_preferred)

    def clicked_ranks(self, texts: list[str]) -> list[int]:
        """Ranks that the user clicks, from 1.

        :param texts: in the order shown.
        """
        clicked = []
        for rank, text in enumerate(texts, 1):
            examines = self.rng.random() < EXAMINED[min(rank, len(EXAMINED)) - 1]
            wants = self.prefers(text) or self.rng.random() < self.noise
            if examines and wants:
                clicked.append(rank)
        return clicked


def write_base(folder: Path) -> Path:
    """Write the torch folder of a tiny BERT that recognizes quality."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *TOPICS, *ASPECTS, *GOOD, *BAD, *LIKED, *DISLIKED, *FILLERS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=48, num_labels=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    teach(model, tokenizer)
    model.save_pretrained(str(folder))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 48, "model_input_names": inputs, **names
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def teach(model, tokenizer, preferences: bool = False) -> None:
    """Train a model to recognize quality, and optionally what users prefer."""
    import torch

    rng = random.Random(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for step in range(60):
        has_style = not preferences or step % 4 > 0
        drawn = [(query, rng.random() < 0.5) for query in sample_queries(rng, 32)]
        pairs = [(query, make_memory(rng, query, good, rng.random() < 0.5, has_style).text) for query, good in drawn]
        encodings = tokenizer.encode_batch(pairs)
        ids = torch.tensor([encoding.ids for encoding in encodings])
        types = torch.tensor([encoding.type_ids for encoding in encodings])
        logits = model(input_ids=ids, token_type_ids=types).logits[:, 0]
        is_positive = [
            is_good(text) and not (preferences and any(word in DISLIKED for word in text.split())) for _, text in pairs
        ]
        labels = torch.tensor([float(positive) for positive in is_positive])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def write_sets(folder: Path) -> dict[str, Path]:
    """Write the files of the replay and of the guard sets; return their paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.jsonl" for name in ("replay", "general", "dated")}
    for seed, (name, count) in enumerate((("replay", 100), ("general", 60), ("dated", 40)), 100):
        write_lists(general_examples(seed, count), files[name])
    return files
