"""How to rank: the settings of the stages around the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mnemorank._internal.validation import check_number
from mnemorank.errors import InputError
from mnemorank.ranking.factors import Fusion
from mnemorank.ranking.selection import Selection

FirstStageSource = Literal["auto", "given", "bm25", "none"]
Supersede = bool | Literal["demote", "drop"]


@dataclass(frozen=True, slots=True)
class Options:
    """How to rank, for one call or as a reranker's defaults.

    :param first_stage: where the first-stage evidence comes from: the memories' own scores (`given`), BM25 over the
        pool (`bm25`), the scores if there are any and BM25 otherwise (`auto`), or `none`. How much it counts is the
        artifact's or `fusion.first_stage_weight`.
    :param supersede: flag outdated memories and rank them below their successor (True, `demote`) or leave them out
        before `top_k` (`drop`), unless the query asks for the past; False leaves them alone.
    :param limit: score at most this many, the first of the first stage's order: by the memories' own scores, else as
        they were given (BM25's only with `first_stage="bm25"`). The rest follow in that order, unscored.
    :param abstain_below: the relevance that the best must reach, or the ranking abstains; None takes the artifact's, 0
        never abstains.
    """

    fusion: Fusion = Fusion()
    selection: Selection = Selection()
    first_stage: FirstStageSource = "auto"
    supersede: Supersede = True
    limit: int | None = None
    abstain_below: float | None = None

    def __post_init__(self) -> None:
        if self.first_stage not in ("auto", "given", "bm25", "none"):
            raise InputError(f"expected auto, given, bm25 or none, got {self.first_stage!r}", field="first_stage")
        if not isinstance(self.supersede, bool) and self.supersede not in ("demote", "drop"):
            raise InputError(f"expected True, False, 'demote' or 'drop', got {self.supersede!r:.60}", field="supersede")
        for name, kind in (("fusion", Fusion), ("selection", Selection)):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"expected {kind.__name__}(…), got {getattr(self, name)!r:.60}", field=name)
        if self.limit is not None:
            check_number("limit", self.limit, 1, whole=True)
        if self.abstain_below is not None:
            check_number("abstain_below", self.abstain_below, 0, 1)
