"""Pack passages of many lengths into batches of bounded size."""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], token_budget: int, most: int | None = None) -> list[list[int]]:
    """Positions grouped into batches, longest first; a batch's padded size stays within the budget.

    Like lengths go together, so that little is padding. A passage longer than the budget is a batch of its own.

    :param most: the largest number of passages in a batch.
    """
    if token_budget < 1 or (most is not None and most < 1):
        raise ValueError(f"token_budget and most must be at least 1, got {token_budget} and {most}")
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda p: -lengths[p]):
        batch = batches[-1] if batches else None
        if (
            batch is not None
            and lengths[batch[0]] * (len(batch) + 1) <= token_budget
            and (most is None or len(batch) < most)
        ):
            batch.append(position)
        else:
            batches.append([position])
    return batches


def pack_in_order(lengths: Sequence[int], token_budget: int, most: int | None = None) -> list[list[int]]:
    """Like `pack`, but earlier positions come in earlier batches: for a deadline, where the first matter most."""
    batches: list[list[int]] = []
    longest = 0
    for position, length in enumerate(lengths):
        longest = max(longest, length)
        batch = batches[-1] if batches else None
        if batch is not None and longest * (len(batch) + 1) <= token_budget and (most is None or len(batch) < most):
            batch.append(position)
        else:
            batches.append([position])
            longest = length
    return batches
