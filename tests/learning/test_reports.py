from mnemorank.learning.reports import DayReport, daily_feedback, unanswered_queries, unused_memories
from mnemorank.learning.signals import Signal
from tests.learning.factories import make_event


def test_memories_that_are_often_shown_and_never_used(store):
    for number in range(12):
        event_id = store.record(make_event(f"question {number}", ("dust", "gold", "mud"), time=float(number)))
        kind, rank = ("cited", 2) if number == 3 else ("ignored", 3)
        store.add_signals([Signal(event_id, kind, rank, time=number + 1.0)])
    store.record(make_event("rare", ("rare",)))
    store.record(make_event("test", ("dust",), test=True))
    dust, mud = unused_memories(store.events(), min_shown=10)
    assert (dust.memory_id, dust.text, dust.shown, dust.mean_rank, dust.last_shown) == ("m-dust", "dust", 12, 1.0, 11.0)
    assert (mud.memory_id, mud.negative) == ("m-mud", 11)
    assert unused_memories(store.events(), min_shown=13) == []


def test_queries_without_a_useful_result(store):
    def record(query, signals=(), **fields):
        event_id = store.record(make_event(query, **fields))
        store.add_signals([Signal(event_id, *signal) for signal in signals])

    record("Where is the yacht?", abstained=True)
    record("the YACHT, where is it?", abstained=True)
    record("Who is Zed?", [("thumbs_down", None)])
    record("What is the wifi code?", [("contradicted", 1)])
    record("Where does Ruby work?", [("cited", 1)], abstained=True)
    record("Without any feedback")
    record("Liked", [("stars", None, 5.0)], abstained=True)
    queries = unanswered_queries(store.events())
    assert [(query.query, query.asked, query.abstained, query.unhelpful) for query in queries] == [
        ("Where is the yacht?", 2, 2, 0),
        ("What is the wifi code?", 1, 0, 1),
        ("Who is Zed?", 1, 0, 1),
    ]
    assert len(unanswered_queries(store.events(), min_asked=2)) == 1


def test_events_and_signals_by_day(store):
    day = 86_400.0
    for time, abstained in ((1.0, False), (day - 1, True), (3 * day, False)):
        event_id = store.record(make_event("q", time=time, abstained=abstained))
        store.add_signals([Signal(event_id, kind, 1, time=time + 1) for kind in ("cited", "thumbs_up")])
    store.record(make_event("test", time=5.0, test=True))
    assert daily_feedback(store.events()) == [
        DayReport("1970-01-01", 2, 1, {"cited": 2, "thumbs_up": 2}),
        DayReport("1970-01-04", 1, 0, {"cited": 1, "thumbs_up": 1}),
    ]
    assert [report.day for report in daily_feedback(store.events(since=day))] == ["1970-01-04"]
