"""A small world to learn in: a tiny real cross-encoder, users with a hidden preference, and attackers.

A memory has a topic, a quality word and a style word. The base model knows that good quality is relevant. The users
also want one of two styles, which the base knows nothing of. They read from the top and often stop early.
"""

from __future__ import annotations

import json
import random
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
LOOKED = (1.0, 0.75, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25)


def memory(source: random.Random, query: str, good: bool, liked: bool, styled: bool = True) -> Memory:
    words = [source.choice(GOOD if good else BAD), source.choice(FILLERS)]
    if styled:
        words.append(source.choice(LIKED if liked else DISLIKED))
    source.shuffle(words)
    return Memory(f"{query} {' '.join(words)}")


def is_good(text: str) -> bool:
    return any(word in GOOD for word in text.split())


def is_wanted(text: str) -> bool:
    """The users' hidden preference."""
    return is_good(text) and any(word in LIKED for word in text.split())


def pool(source: random.Random, query: str) -> list[Memory]:
    """Eight memories: two as users want them, two of the same quality in the other style, four of poor quality."""
    kinds = [(True, True)] * 2 + [(True, False)] * 2 + [(False, True)] * 2 + [(False, False)] * 2
    made = [memory(source, query, good, liked) for good, liked in kinds]
    source.shuffle(made)
    return made


def queries(source: random.Random, count: int) -> list[str]:
    return source.sample([f"{topic} {aspect}" for topic in TOPICS for aspect in ASPECTS], count)


def preference_examples(seed: int, count: int) -> list[Example]:
    """Fresh queries with the users' true wishes, to see whether they are met."""
    source = random.Random(seed)
    made = []
    for number, query in enumerate(queries(source, count)):
        candidates = tuple(Candidate(one, float(is_wanted(one.text))) for one in pool(source, query))
        made.append(Example(f"wish-{number}", query, candidates, group=query))
    return made


def general_examples(seed: int, count: int) -> list[Example]:
    """What any model should know: quality, in memories without a style."""
    source = random.Random(seed)
    made = []
    for number, query in enumerate(queries(source, count)):
        right = [Candidate(memory(source, query, True, True, styled=False), 1.0) for _ in range(2)]
        wrong = [Candidate(memory(source, query, False, True, styled=False), 0.0) for _ in range(4)]
        made.append(Example(f"general-{number}", query, (*right, *wrong), group=query))
    return made


@dataclass
class User:
    """:param noise: how often they click whatever they look at."""

    name: str
    source: random.Random
    noise: float = 0.05
    wants: object = field(default=is_wanted)

    def clicks(self, shown: list[str]) -> list[int]:
        """Positions clicked, of texts in the order shown."""
        found = []
        for position, text in enumerate(shown):
            looks = self.source.random() < LOOKED[min(position, len(LOOKED) - 1)]
            wants = self.wants(text) or self.source.random() < self.noise
            if looks and wants:
                found.append(position)
        return found


def write_base(folder: Path) -> Path:
    """A torch folder of a tiny BERT that was trained to tell quality, and the files that the loop needs beside it."""
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


def teach(model, tokenizer, wishes: bool = False) -> None:
    """Train a model to tell quality, or with `wishes` also what the users want."""
    import torch

    source = random.Random(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for step in range(60):
        styled = not wishes or step % 4 > 0
        drawn = [(query, source.random() < 0.5) for query in queries(source, 32)]
        pairs = [(query, memory(source, query, good, source.random() < 0.5, styled).text) for query, good in drawn]
        encoded = tokenizer.encode_batch(pairs)
        ids = torch.tensor([one.ids for one in encoded])
        types = torch.tensor([one.type_ids for one in encoded])
        logits = model(input_ids=ids, token_type_ids=types).logits[:, 0]
        right = [is_good(text) and not (wishes and any(word in DISLIKED for word in text.split())) for _, text in pairs]
        labels = torch.tensor([float(one) for one in right])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def write_sets(folder: Path) -> dict[str, Path]:
    """Files of the replay and of the guard sets."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.jsonl" for name in ("replay", "general", "dated")}
    for seed, (name, count) in enumerate((("replay", 100), ("general", 60), ("dated", 40)), 100):
        write_lists(general_examples(seed, count), files[name])
    return files
