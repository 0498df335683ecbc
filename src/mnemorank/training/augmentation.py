"""Hidden tokens: a source's texts come with others masked each time, so that they are not learned by heart."""

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

_MASKS = ("[MASK]", "<mask>")


class Hiding:
    """Puts the tokenizer's mask in the place of some tokens, never of those that hold an input together.

    :param shares: of tokens hidden, by the name of the source.
    """

    def __init__(self, tokenizer: Tokenizer, shares: Mapping[str, float]) -> None:
        self._shares = shares
        added = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]
        self._kept = np.array([*added, *tokenizer.encode("", "").ids], dtype=np.int64)
        found = [number for name in _MASKS if (number := tokenizer.token_to_id(name)) is not None]
        if any(shares.values()) and not found:
            raise InputError(
                f"the tokenizer has no mask ({' or '.join(_MASKS)}) to put in a token's place", field="mask_rate"
            )
        self._mask = found[0] if found else 0

    def hide(self, inputs: Sequence[Input], source: str, rng: random.Random) -> tuple[Input, ...]:
        share = self._shares.get(source, 0.0)
        if not share:
            return tuple(inputs)
        chance = np.random.default_rng(rng.getrandbits(64))
        return tuple(self._hidden(each, share, chance) for each in inputs)

    def _hidden(self, one: Input, share: float, chance: np.random.Generator) -> Input:
        is_hidden = (chance.random(len(one.ids)) < share) & ~np.isin(one.ids, self._kept)
        return replace(one, ids=np.where(is_hidden, self._mask, one.ids))


_FEATURE = re.compile(r"\[[^\]]*\]")


class NoisyFeatures:
    """Renders the `features` template with noise that is drawn anew for each list."""

    def __init__(self, template: Template, noise: FeatureNoise) -> None:
        self._render = template.render
        self._noise = noise
        self._rng = random.Random(0)
        self._texts: Sequence[str] = ()
        self.template = replace(template, render=self.render)

    def begin(self, texts: Sequence[str], rng: random.Random) -> None:
        """Start a list: its texts lend each other their features."""
        self._texts, self._rng = texts, rng

    def render(self, query: str, text: str, instruction: str) -> Rendered:
        rendered = self._render(query, text, instruction)
        own = feature_prefix(query, text)
        shown = own
        if self._texts and self._rng.random() < self._noise.swap:
            shown = feature_prefix(query, self._rng.choice(self._texts))
        kept = [feature for feature in _FEATURE.findall(shown) if self._rng.random() >= self._noise.drop]
        rest = rendered.first.removeprefix(own).lstrip()
        return replace(rendered, first=" ".join([*kept, rest]))
