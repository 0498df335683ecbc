from datetime import date

import pytest

from mnemorank import InputError, Memory, Options, Reranker
from mnemorank.memory.moment import Moment
from mnemorank.ranking.stages.query_dates import query_periods, time_evidence

NOW = Moment.parse("2023-03-09T10:00")  # a Thursday


def days(query, now=NOW, years=()):
    """The times that a query names, each as its first and last day."""
    found = query_periods(query, Moment.parse(now), years)
    return [(str(date.fromordinal(time.start)), str(date.fromordinal(time.end - 1))) for time in found]


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
        ("what did yin do on january 5th, 2022", "2022-01-05", "2022-01-05"),
        ("what did yin do on the 5th of january 2022", "2022-01-05", "2022-01-05"),
        ("where was i in march 2021", "2021-03-01", "2021-03-31"),
        ("What did I eat in the last week?", "2023-03-02", "2023-03-09"),
        ("Which books have I read over the last year?", "2022-03-09", "2023-03-09"),
        ("What did I buy in the last few days?", "2023-03-06", "2023-03-09"),
        ("What did I buy in the past couple of weeks?", "2023-02-23", "2023-03-09"),
        ("What did Yin do on 2023-01-15?", "2023-01-15", "2023-01-15"),
        ("What did Yin do on January 5th, 2022?", "2022-01-05", "2022-01-05"),
        ("What did Yin do on the 5th of January 2022?", "2022-01-05", "2022-01-05"),
        ("What did Yin do in May 2021?", "2021-05-01", "2021-05-31"),
        ("Who led the team in 2019?", "2019-01-01", "2019-12-31"),
        ("Who moved in February?", "2023-02-01", "2023-02-28"),
        ("What did May say in June?", "2023-06-01", "2023-06-30"),
        ("What did I buy in March last year?", "2022-03-01", "2022-03-31"),
        ("the photo from last Saturday", "2023-03-04", "2023-03-04"),
        ("letter from March 5th", "2023-03-05", "2023-03-05"),
        ("log of 2023-01-15T10:00", "2023-01-15", "2023-01-15"),
        ("log of 2023/01/15", "2023-01-15", "2023-01-15"),
        ("Whom did I meet twenty-one days ago?", "2023-02-16", "2023-02-16"),
        ("Whom did I meet a couple weeks ago?", "2023-02-23", "2023-02-23"),
        ("What have I spent over the past week?", "2023-03-02", "2023-03-09"),
        ("What did I read on 5 March?", "2023-03-05", "2023-03-05"),
        ("Who did I talk to yesterday?", "2023-03-08", "2023-03-08"),
        ("What did I listen to last week?", "2023-02-27", "2023-03-05"),
        ("Whom did I look after last weekend?", "2023-03-04", "2023-03-05"),
        ("Which shop did I stop by yesterday?", "2023-03-08", "2023-03-08"),
        ("What did I do yesterday to fix the printer?", "2023-03-08", "2023-03-08"),
        ("Where did I go last week to buy shoes?", "2023-02-27", "2023-03-05"),
    ],
)
def test_periods_in_a_query(query, first, last):
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
        "half a year ago",
        "1.5 years ago",
        "two years and a month ago",
        "this may be wrong, and did this fall apart?",
        "Did I drive past Sunday market?",
        "What did I do before 5 May 2023?",
        "since the 5th of May",
        "until the end of May 2023",
        "since late last year",
        "between March and May 2022",
        "between May 1st and May 7th",
        "from May 1st to May 7th, what happened?",
        "Who is the brother of April?",
        "Who lives in May Creek?",
        "Who died on March 5, 1850?",
        "the 2009-10 season",
        "order 2023-00",
        "invoice 2023-00-17",
        "laſt ſummer, fıve days ago, last FRİDAY",
        "",
    ],
)
def test_queries_without_a_date(query):
    assert days(query) == []


def test_a_day_without_a_year_matches_any_year():
    found = days("What did Yin do on February 29th?", years=(2023, 2024, 2028))
    assert found == [("2024-02-29", "2024-02-29"), ("2028-02-29", "2028-02-29")]


def test_several_dates_in_a_query():
    assert days("Who visited in March or April?", years=(2022,)) == [
        ("2022-03-01", "2022-03-31"), ("2022-04-01", "2022-04-30"),
    ]  # fmt: skip
    assert [first for first, _ in days("Who visited in 2021 and 2022?")] == ["2021-01-01", "2022-01-01"]


def test_the_current_winter_is_not_last_winter():
    assert days("last winter", "2024-02-10") == [("2022-12-01", "2023-02-28")]


@pytest.mark.parametrize(
    ("now", "day"), [("2023-03-09T23:30-05:00", "2023-03-08"), ("2023-03-09T01:30+02:00", "2023-03-08")]
)
def test_days_are_local_not_utc(now, day):
    assert days("What did I eat yesterday?", now) == [(day, day)]


@pytest.mark.parametrize("now", ["2023", "2023-03"])
def test_yesterday_needs_a_day_precise_now(now):
    assert days("yesterday", now) == []


@pytest.mark.parametrize(("now", "query"), [("0001-01-01", "last week"), ("9999-12-31", "this year")])
def test_dates_outside_the_calendar(now, query):
    assert days(query, now) == []


def test_long_queries_are_parsed_at_their_end():
    assert len(query_periods("in May " * 20_000 + "last Saturday", NOW)) == 2


@pytest.mark.parametrize(
    ("query", "right", "wrong"),
    [("yesterday", "2023-03-08", "2023-03-07"), ("in May 2022", "2022-05", "2022-04"), ("in 2019", "2019", "2020")],
)
def test_neighboring_periods_count_less(query, right, wrong):
    near, next_to = time_evidence(query, [Memory("x", mentioned_at=right), Memory("y", mentioned_at=wrong)], NOW, 1.0)
    assert near == 1
    assert 0 < next_to < 0.99


def test_closer_days_count_more():
    pool = [Memory("x", mentioned_at=day) for day in ("2023-03-04", "2023-03-06", "2023-02-11", "2023-01-01")]
    worth = time_evidence("Who visited last Saturday?", [*pool, Memory("no date")], NOW, 2.0)
    assert worth[0] > worth[1] > worth[2] > worth[3]
    assert worth[0] == 2
    assert worth[3] == pytest.approx(0, abs=1e-9)
    assert worth[4] == 0


def test_months_ago_is_month_precise():
    pool = [Memory("x", mentioned_at="2023-01-02"), Memory("y", mentioned_at="2022-11-02")]
    near, far = time_evidence("What did I buy two months ago?", pool, NOW, 1.0)
    assert near - far > 0.4


def test_spans_count_by_their_nearest_day():
    trip = Memory("x", occurred_start="2023-02-25", occurred_end="2023-03-05")
    job = Memory("y", occurred_start="2020-01-01", occurred_end="2024-01-01")
    begun = Memory("z", occurred_start="2023-03-04")
    worth = time_evidence("last weekend", [trip, job, begun], NOW, 1.0)
    assert list(worth) == [1, 0, 1]


def test_coarse_dates_count_less_for_a_day():
    assert list(time_evidence("yesterday", [Memory("x", mentioned_at="2023-03")], NOW, 1.0)) == [0]


def test_no_date_or_no_pool_adds_nothing():
    pool = [Memory("x", mentioned_at="2023-03-01"), Memory("y", mentioned_at="2023-03-02")]
    assert list(time_evidence("Where does Ruby work?", pool, NOW, 3.0)) == [0, 0]
    assert time_evidence("last week", [], NOW, 3.0).shape == (0,)


def test_query_dates_raise_the_score_not_relevance(tiny_onnx):
    pool = [{"text": "a bracelet", "mentioned_at": "2023-03-04"}, {"text": "a bracelet", "mentioned_at": "2023-01-04"}]
    options = Options(weights={"query_dates": 2.0}, first_stage="none", supersession="off")
    ask = Reranker(tiny_onnx, options=options).rerank
    named = ask("Who gave me a bracelet last Saturday?", pool, now=NOW, explain=True)
    assert [result.index for result in named] == [0, 1]
    assert named[0].relevance == pytest.approx(named[1].relevance)
    assert named[0].factors["query_dates"] == 2
    assert named[1].factors["query_dates"] == pytest.approx(0, abs=1e-9)
    ranking = ask(
        "Who gave me a bracelet last Saturday?", pool, now=NOW, explain=True, time_range=("2023-01", "2023-01")
    )
    assert [result.index for result in ranking] == [1, 0]
    assert ranking[0].factors["query_dates"] == 0


def test_relative_dates_count_from_as_of(tiny_onnx):
    pool = [{"text": "a bracelet", "mentioned_at": day} for day in ("2023-03-08", "2021-06-14")]
    options = Options(weights={"query_dates": 2.0}, first_stage="none", supersession="off")
    then = Reranker(tiny_onnx, options=options).rerank("yesterday", pool, now=NOW, as_of="2021-06-15", explain=True)
    assert {result.index: result.factors["query_dates"] for result in then}[1] == 2


def test_a_negative_weight_is_rejected():
    with pytest.raises(InputError, match=r"weights\.query_dates: expected a number from 0"):
        Options(weights={"query_dates": -1})


def test_later_states_do_not_gain():
    costa = Memory("Our landlord is Mr Costa.", type="world", occurred_start="2019-09")
    silva = Memory("Our landlord is Ms Silva.", type="world", occurred_start="2022-01-10")
    visit = Memory("Ms Silva came by.", type="event", occurred_start="2022-01-10")
    gained = time_evidence("Who was our landlord in 2021?", [costa, silva, visit], NOW, 1.0)
    assert gained[:2].tolist() == pytest.approx([0.0, 0.0], abs=0.01)
    assert gained[2] > 0.5


def test_utc_memories_are_converted_to_local_days():
    now = Moment.parse("2025-05-14T20:00:00-07:00")
    yesterday = Memory("Had dinner with Ana.", mentioned_at="2025-05-14T02:00:00Z")  # 19:00 on the 13th
    before = Memory("Had dinner with Bob.", mentioned_at="2025-05-13T03:00:00Z")
    plain = Memory("Had dinner with Cy.", mentioned_at="2025-05-13T23:00:00")
    found = time_evidence("Who did I have dinner with yesterday?", [yesterday, before, plain], now, 1.0)
    assert found[0] == found[2] == 1.0 > found[1]


def test_first_day_of_the_calendar():
    old = Memory("Had dinner.", mentioned_at="0001-01-01T02:00:00+00:00")
    assert time_evidence("What did I eat yesterday?", [old], Moment.parse("2025-05-14T20:00:00-07:00"), 1.0)[0] < 0.1
