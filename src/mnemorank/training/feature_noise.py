"""Feature dropout for R4: features are now and then missing or another text's, so that they are no crutch."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from mnemorank.features import feature_prefix
from mnemorank.templates import Rendered, Template
from mnemorank.training.recipe import FeatureNoise

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
