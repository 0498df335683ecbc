"""Augmentation: masked tokens and noisy features, drawn again each time a list comes up."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tokenizers import Tokenizer

from mnemorank.artifact.hop_features import feature_prefix
from mnemorank.artifact.templates import Rendered, Template
from mnemorank.errors import InputError
from mnemorank.scorers.encoding import Input
from mnemorank.training.recipe import FeatureNoise

_MASK_TOKENS = ("[MASK]", "<mask>")
_FEATURE = re.compile(r"\[[^\]]*\]")


class TokenMasking:
    """Replaces random tokens by the mask token, so that texts that come up often are not memorized.

    Special tokens are never replaced.

    :param rates: the share of tokens to mask, by source.
    """

    def __init__(self, tokenizer: Tokenizer, rates: Mapping[str, float]) -> None:
        self._rates = rates
        special = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]
        self._special = np.array([*special, *tokenizer.encode("", "").ids], dtype=np.int64)
        masks = [number for name in _MASK_TOKENS if (number := tokenizer.token_to_id(name)) is not None]
        if any(rates.values()) and not masks:
            raise InputError(f"the tokenizer has no mask token ({' or '.join(_MASK_TOKENS)})", field="mask_rate")
        self._mask = masks[0] if masks else 0

    def apply(self, inputs: Sequence[Input], source: str, rng: random.Random) -> tuple[Input, ...]:
        rate = self._rates.get(source, 0.0)
        if not rate:
            return tuple(inputs)
        generator = np.random.default_rng(rng.getrandbits(64))
        return tuple(self._masked(each, rate, generator) for each in inputs)

    def _masked(self, entry: Input, rate: float, generator: np.random.Generator) -> Input:
        is_masked = (generator.random(len(entry.ids)) < rate) & ~np.isin(entry.ids, self._special)
        return replace(entry, ids=np.where(is_masked, self._mask, entry.ids))


class NoisyFeatures:
    """Renders the `features` template with features dropped and swapped at random."""

    def __init__(self, template: Template, noise: FeatureNoise) -> None:
        self._render = template.render
        self._noise = noise
        self._rng = random.Random(0)
        self._texts: Sequence[str] = ()
        self.template = replace(template, render=self.render)

    def start_list(self, texts: Sequence[str], rng: random.Random) -> None:
        """Set the texts among which features are swapped."""
        self._texts, self._rng = texts, rng

    def render(self, query: str, text: str, instruction: str) -> Rendered:
        rendered = self._render(query, text, instruction)
        prefix = feature_prefix(query, text)
        noisy = prefix
        if self._texts and self._rng.random() < self._noise.swap:
            noisy = feature_prefix(query, self._rng.choice(self._texts))
        kept = [feature for feature in _FEATURE.findall(noisy) if self._rng.random() >= self._noise.drop]
        rest = rendered.first.removeprefix(prefix).lstrip()
        return replace(rendered, first=" ".join([*kept, rest]))
