"""Add the cosines of an embedding model to dev sets, as first-stage scores.

    python research/first_stages.py OUT.jsonl.gz everyday:dev.jsonl.gz --encoder FOLDER
    mnemorank bench lists OUT.jsonl.gz --model mini --model first-stage

`bench` then compares the model, which blends in these scores, with their order (`first-stage`). The folder holds
`tokenizer.json` and `model.onnx` of an encoder, whose tokens are averaged (`--pooling mean`) or whose first token is
taken (`--pooling first`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mnemorank.data.benchmarks import loaders
from mnemorank.data.examples import Example
from mnemorank.data.formats import write_lists

MAX_TOKENS = 256


class Encoder:
    """Embeds texts one by one and keeps their embeddings."""

    def __init__(self, folder: Path, pooling: str, query_prefix: str) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()
        self.session = ort.InferenceSession(str(next(folder.rglob("model.onnx"))), providers=["CPUExecutionProvider"])
        self.pooling, self.query_prefix = pooling, query_prefix
        self.known: dict[str, NDArray[np.float32]] = {}

    def query(self, text: str) -> NDArray[np.float32]:
        return self.embed(self.query_prefix + text)

    def embed(self, text: str) -> NDArray[np.float32]:
        if text not in self.known:
            ids = np.array([self.tokenizer.encode(text).ids], dtype=np.int64)
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            wanted = {node.name for node in self.session.get_inputs()}
            tokens = self.session.run(None, {name: value for name, value in feed.items() if name in wanted})[0][0]
            pooled = tokens[0] if self.pooling == "first" else tokens.mean(0)
            self.known[text] = (pooled / np.linalg.norm(pooled)).astype(np.float32)
        return self.known[text]


def with_scores(examples: Iterator[Example], encoder: Encoder) -> Iterator[Example]:
    for example in examples:
        query = encoder.query(example.query)
        candidates = tuple(
            replace(candidate, memory=candidate.memory.with_score(float(query @ encoder.embed(candidate.memory.text))))
            for candidate in example.candidates
        )
        yield replace(example, candidates=candidates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("set", help="task:path")
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--pooling", choices=("mean", "first"), default="mean")
    parser.add_argument("--query-prefix", default="")
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    task, _, path = arguments.set.partition(":")
    examples = islice(loaders[task].read(Path(path)), arguments.limit)
    encoder = Encoder(arguments.encoder, arguments.pooling, arguments.query_prefix)
    write_lists(with_scores(examples, encoder), arguments.output)


if __name__ == "__main__":
    main()
