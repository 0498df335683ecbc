"""The deadline of a request."""

from __future__ import annotations

import math
import threading
import time

import pytest

from mnemorank._internal.deadline import Deadline


@pytest.fixture
def clock(monkeypatch):
    """A clock that is moved by hand: `clock(2)` lets two seconds pass."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_expires_after_its_time(clock):
    deadline = Deadline(2)
    assert (deadline.remaining(), deadline.expired) == (2, False)
    clock(1.5)
    assert (deadline.remaining(), deadline.expired) == (0.5, False)
    clock(0.5)
    assert (deadline.remaining(), deadline.expired) == (0, True)
    clock(5)
    assert deadline.remaining() == 0


def test_milliseconds(clock):
    assert Deadline.after_ms(250).remaining() == pytest.approx(0.25)


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_at_all_is_expired(clock, seconds):
    assert Deadline(seconds).expired


def test_within_never_extends_the_deadline(clock):
    deadline = Deadline(2)
    assert deadline.within(1).remaining() == 1
    assert deadline.within(5).remaining() == 2
    clock(3)
    assert deadline.within(5).expired


def test_a_request_without_a_time_limit_can_be_canceled(clock):
    deadline = Deadline(math.inf)
    clock(1e9)
    assert (deadline.remaining(), deadline.expired) == (math.inf, False)
    deadline.cancel()
    assert (deadline.remaining(), deadline.expired) == (0, True)
    assert deadline.within(5).expired


def test_a_timeout_has_a_grace_period_and_may_be_unlimited(clock):
    deadline = Deadline(2)
    assert (deadline.timeout(), deadline.timeout(0.5)) == (2, 2.5)
    clock(3)
    assert (deadline.timeout(), deadline.timeout(0.5)) == (0, 0.5)
    assert Deadline(math.inf).timeout() is None
    assert Deadline(threading.TIMEOUT_MAX).timeout(1) is None


def test_an_extended_deadline_expires_with_the_original_but_not_too_soon(clock):
    deadline = Deadline(10)
    extended = deadline.but_not_within(2)
    assert (extended.remaining(), extended.expired) == (10, False)
    deadline.cancel()
    assert (extended.remaining(), extended.expired) == (2, False)
    assert extended.within(5).remaining() == 2
    clock(2)
    assert extended.expired
