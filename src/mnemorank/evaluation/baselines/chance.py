"""Random order, the same on every run."""

from __future__ import annotations

import zlib

import numpy as np

from mnemorank.evaluation.baselines.base import Baseline, Floats, Question, baselines


def score_random(question: Question) -> Floats:
    seed = zlib.crc32(question.key.encode(errors="surrogatepass"))
    return np.random.default_rng(seed).random(len(question.memories))


baselines.add(Baseline("random", "random order", score_random))
