"""MiningRules: how feedback becomes examples."""

from __future__ import annotations

from dataclasses import dataclass

from mnemorank.errors import InputError


@dataclass(frozen=True, slots=True)
class MiningRules:
    """How feedback becomes examples.

    :param clip: the most that position correction may multiply a signal by.
    :param weighted: labels count in training by the corrected weight of their votes; else all the same.
    :param floor: share of the weight that must agree for a label; below it the memory is left out as disputed.
    :param per_user: queries one of a tenant's actors may speak on, or `user_share` of the tenant's if that is more. The
        only actor of a tenant may speak on all.
    :param min_users: actors that must have spoken for a memory for it to be a positive.
    :param support: of the actors who spoke on a query, the share that a positive needs more than; from four actors on.
        Without it a few accounts could push a memory that nobody else has looked at.
    :param positives, negatives: most kept per query, the weightiest.
    :param easy_negatives: drawn from other queries where a query has positives alone.
    :param held_out: share of queries that are kept for the gate and never trained on.
    :param unjudged: memories that stand in a held-out example without a word on them, the first shown.
    """

    clip: float = 5.0
    skip_weight: float = 0.3
    weighted: bool = True
    floor: float = 2 / 3
    per_user: int = 20
    user_share: float = 0.1
    min_users: int = 1
    support: float = 1 / 3
    positives: int = 3
    negatives: int = 8
    easy_negatives: int = 3
    held_out: float = 0.3
    unjudged: int = 30

    def __post_init__(self) -> None:
        if not 0.5 < self.floor <= 1:
            raise InputError(f"expected a share above 0.5, got {self.floor!r}", field="mining.floor")
        if not 0 < self.held_out < 1:
            raise InputError(f"expected a share between 0 and 1, got {self.held_out!r}", field="mining.held_out")
        if not self.clip >= 1:
            raise InputError(f"expected a number from 1, got {self.clip!r}", field="mining.clip")
