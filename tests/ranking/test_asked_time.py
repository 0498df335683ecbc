from datetime import date

import numpy as np
import pytest

from mnemorank import Fusion, InputError, Memory, Options, Reranker
from mnemorank.moment import Moment
from mnemorank.ranking.asked_time import asked_times, time_evidence

NOW = Moment.parse("2023-03-09T10:00")  # a Thursday


def days(query, now=NOW, years=()):
    """The times that a query names, each as its first and last day."""
    found = asked_times(query, now, years)
    return [(str(date.fromordinal(int(t.start))), str(date.fromordinal(int(np.ceil(t.end)) - 1))) for t in found]


@pytest.mark.parametrize(
    ("query", "first", "last"),
    [
        ("Who gave me a bracelet last Saturday?", "2023-03-04", "2023-03-04"),
        ("What did I do last Thursday?", "2023-03-02", "2023-03-02"),
        ("What did I plant two weeks ago?", "2023-02-23", "2023-02-23"),
        ("What did I post 5 days ago?", "2023-03-04", "2023-03-04"),
        ("Whom did I meet a couple of days ago?", "2023-03-07", "2023-03-07"),
        ("What did we eat yesterday?", "2023-03-08", "2023-03-08"),
        ("Where was I the day before yesterday?", "2023-03-07", "2023-03-07"),
        ("Where did I go last week?", "2023-02-27", "2023-03-05"),
        ("What have I done this week?", "2023-03-06", "2023-03-09"),
        ("What did I cook last weekend?", "2023-03-04", "2023-03-05"),
        ("What did I buy last month?", "2023-02-01", "2023-02-28"),
        ("What did I buy this month?", "2023-03-01", "2023-03-31"),
        ("Where did we go last year?", "2022-01-01", "2022-12-31"),
        ("Where did we go last summer?", "2022-06-01", "2022-08-31"),
        ("Where did we go last winter?", "2022-12-01", "2023-02-28"),
        ("What happened last December?", "2022-12-01", "2022-12-31"),
        ("How much did I spend in the last ten days?", "2023-02-27", "2023-03-09"),
        ("What did Yin do on 2023-01-15?", "2023-01-15", "2023-01-15"),
        ("What did Yin do on January 5th, 2022?", "2022-01-05", "2022-01-05"),
        ("What did Yin do on the 5th of January 2022?", "2022-01-05", "2022-01-05"),
        ("What did Yin do in May 2021?", "2021-05-01", "2021-05-31"),
        ("Who led the team in 2019?", "2019-01-01", "2019-12-31"),
        ("Who moved in February?", "2023-02-01", "2023-02-28"),
    ],
)
def test_the_time_a_query_names(query, first, last):
    assert days(query) == [(first, last)]


@pytest.mark.parametrize(
    "query",
    [
        "How many days ago did I attend the service?",
        "What changed since last year?",
        "Where did Ruby work before March 2020?",
        "Who was here until two weeks ago?",
        "May I march in the parade?",
        "What lasted two weeks?",
        "What did Yin do on February 31st, 2022?",
        "the last of the six flats",
        "",
    ],
)
def test_a_border_or_no_time_names_none(query):
    assert days(query) == []


def test_a_day_without_its_year_may_be_of_any_year_of_the_pool():
    found = days("What did Yin do on February 29th?", years=(2023, 2024, 2028))
    assert found == [("2024-02-29", "2024-02-29"), ("2028-02-29", "2028-02-29")]


def test_the_nearer_the_day_the_more_it_counts():
    pool = [Memory("x", mentioned_at=day) for day in ("2023-03-04", "2023-03-06", "2023-02-11", "2023-01-01")]
    worth = time_evidence("Who visited last Saturday?", [*pool, Memory("no date")], NOW, 2.0)
    assert worth[0] > worth[1] > worth[2] > worth[3]
    assert worth[3] == pytest.approx(worth[4], abs=1e-9)
    assert worth.sum() == pytest.approx(0)
    assert worth[0] - worth[4] == pytest.approx(2.0)


def test_who_counts_in_months_does_not_count_the_days():
    pool = [Memory("x", mentioned_at="2023-01-02"), Memory("y", mentioned_at="2022-11-02")]
    near, far = time_evidence("What did I buy two months ago?", pool, NOW, 1.0)
    assert near - far > 0.4


def test_a_span_counts_by_its_nearest_day_unless_it_is_much_longer():
    trip = Memory("x", occurred_start="2023-02-25", occurred_end="2023-03-05")
    job = Memory("y", occurred_start="2020-01-01", occurred_end="2024-01-01")
    begun = Memory("z", occurred_start="2023-03-04")
    worth = time_evidence("last weekend", [trip, job, begun], NOW, 1.0)
    assert worth[0] == worth[2] > worth[1]


@pytest.mark.parametrize("query", ["Where does Ruby work?", "last week"])
def test_nothing_is_gained_where_no_memory_stands_out(query):
    pool = [Memory("x", mentioned_at="2023-03-01"), Memory("y", mentioned_at="2023-03-02")]
    np.testing.assert_array_equal(time_evidence(query, pool, NOW, 3.0), 0)
    assert time_evidence(query, [], NOW, 3.0).shape == (0,)


def test_it_raises_the_score_and_leaves_relevance(tiny_onnx):
    pool = [{"text": "a bracelet", "mentioned_at": "2023-03-04"}, {"text": "a bracelet", "mentioned_at": "2023-01-04"}]
    options = Options(fusion=Fusion(asked_time_weight=2.0), first_stage="none", supersede=False)
    ask = Reranker(tiny_onnx, options=options).rerank
    named = ask("Who gave me a bracelet last Saturday?", pool, now=NOW, explain=True)
    assert [result.index for result in named] == [0, 1]
    assert named[0].relevance == pytest.approx(named[1].relevance)
    assert named[0].factors["asked_time"] == pytest.approx(-named[1].factors["asked_time"])
    told = ask("Who gave me a bracelet last Saturday?", pool, now=NOW, explain=True, time_range=("2023-01", "2023-01"))
    assert [result.index for result in told] == [1, 0]
    assert told[0].factors["asked_time"] == 0


def test_a_weight_below_zero_is_refused():
    with pytest.raises(InputError, match="asked_time_weight: expected a number from 0"):
        Fusion(asked_time_weight=-1)
