from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank import InputError, Moment


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2024", "2024 (2024)"),
        ("2024-03", "March 2024 (2024-03)"),
        ("2024-03-05", "March 05, 2024 (2024-03-05)"),
        ("2024-03-05T10:00:00+01:00", "March 05, 2024 (2024-03-05)"),
        ("2024/03/05", "March 05, 2024 (2024-03-05)"),
        ("9999-12-31", "December 31, 9999 (9999-12-31)"),
        ("0001-01-01", "January 01, 0001 (0001-01-01)"),
    ],
)
def test_words_keep_the_precision(text, words):
    assert Moment.parse(text).words() == words


@pytest.mark.parametrize(
    "bad",
    ["", "yesterday", "2024-13", "2024-02-30", "0000-01-01", "2024-3-5", "24-03-05", "2024-03-05T25:00", "20240305"],
)
def test_bad_dates_are_errors(bad):
    with pytest.raises(InputError):
        Moment.parse(bad)


@pytest.mark.parametrize("bad", [None, True, 1.5, 20240305, [], "x" * 500])
def test_other_values_are_errors_of_bounded_length(bad):
    with pytest.raises(InputError) as caught:
        Moment.parse(bad)
    assert len(str(caught.value)) < 200


def test_python_dates_and_years():
    assert Moment.parse(date(2024, 3, 5)) == Moment(2024, 3, 5)
    assert Moment.parse(2024) == Moment(2024)
    at = datetime(2024, 3, 5, 10, 0, tzinfo=timezone(timedelta(hours=2)))
    assert str(Moment.parse(at)) == "2024-03-05T10:00:00+02:00"


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("kind", [int, float, Decimal, np.int64, np.float64])
def test_numbers_are_epochs_in_utc(scale, kind):
    assert str(Moment.parse(kind(1700000000 * scale))) == "2023-11-14T22:13:20+00:00"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1700000000.25, "2023-11-14T22:13:20.250000+00:00"),
        (1700000000123, "2023-11-14T22:13:20.123000+00:00"),
        (10**8, "1973-03-03T09:46:40+00:00"),
        (253402300799000, "9999-12-31T23:59:59+00:00"),
        ("1700000000", "2023-11-14T22:13:20+00:00"),
        ("1700000000.5", "2023-11-14T22:13:20.500000+00:00"),
        ("1700000000123", "2023-11-14T22:13:20.123000+00:00"),
        (2024.0, "2024"),
        (np.int64(2024), "2024"),
        (np.datetime64("2024-03"), "2024-03"),
        (np.datetime64("2024-03-05T10:00", "ns"), "2024-03-05T10:00:00"),
    ],
)
def test_numbers_and_numpy_dates(value, text):
    assert str(Moment.parse(value)) == text


class NaT(datetime):
    """A datetime that does not equal itself, like NaT of pandas."""

    __hash__ = None

    def __eq__(self, other):
        return False


@pytest.mark.parametrize(
    "bad",
    [
        10**8 - 1, -1700000000, 253402300800000, 10**30, float("nan"), float("inf"), Decimal("NaN"),
        np.datetime64("NaT"), NaT(2024, 1, 1), "202403051030", "20240305103000",
    ],
)  # fmt: skip
def test_numbers_that_are_not_dates(bad):
    with pytest.raises(InputError):
        Moment.parse(bad)


def test_a_named_time_zone_keeps_its_offset():
    moment = Moment.parse(datetime(2024, 3, 5, 0, 30, tzinfo=ZoneInfo("America/New_York")))
    assert str(moment) == "2024-03-05T00:30:00-05:00"


def test_midnight_without_a_time_zone_is_a_day():
    assert Moment.parse("2026-03-20T00:00:00") == Moment(2026, 3, 20)
    assert Moment.parse("2026-03-20T00:00:00Z").time is not None


def test_moments_are_compared_in_utc():
    tokyo, london = Moment.parse("2024-03-05T08:00+09:00"), Moment.parse("2024-03-05T00:30+00:00")
    assert tokyo.is_before(london)
    assert not london.is_before(tokyo)


def test_overlapping_moments_are_not_before_each_other():
    year, month = Moment(2024), Moment(2024, 3)
    assert not year.is_before(month)
    assert not month.is_before(year)
    assert Moment(2023).is_before(month)


def test_the_last_day_does_not_overflow():
    last = Moment.parse("9999-12-31T23:59:59-12:00")
    assert last.start > Moment.parse("9999-12-31").start


dates = st.dates(date(1, 1, 1), date(9999, 12, 31))


@given(dates, st.sampled_from(["%Y", "%Y-%m", "%Y-%m-%d"]))
def test_text_round_trip_and_bounds(day, precision):
    text = {"%Y": f"{day.year:04d}", "%Y-%m": f"{day.year:04d}-{day.month:02d}"}.get(precision, day.isoformat())
    moment = Moment.parse(text)
    assert str(moment) == text
    assert moment.start <= day.toordinal() < moment.end


@given(dates, dates)
def test_days_are_ordered_as_python_orders_them(a, b):
    assert Moment.parse(a).is_before(Moment.parse(b)) == (a < b)
