from mnemorank.learning.reports import no_hits, unused_memories
from mnemorank.learning.signals import Signal
from tests.learning.learning_cases import make_event


def test_memories_shown_often_and_never_used_are_named(store):
    for number in range(12):
        event_id = store.record(make_event(f"question {number}", ("dust", "gold", "mud"), time=float(number)))
        kind, position = ("cited", 1) if number == 3 else ("ignored", 2)
        store.signal([Signal(event_id, kind, position, time=number + 1.0)])
    store.record(make_event("rare", ("rare",)))
    store.record(make_event("test", ("dust",), test=True))
    dust, mud = unused_memories(store.events(), least_shown=10)
    assert (dust.memory_id, dust.text, dust.shown, dust.mean_position, dust.last_shown) == (
        "m-dust",
        "dust",
        12,
        0.0,
        11.0,
    )
    assert (mud.memory_id, mud.disliked) == ("m-mud", 11)
    assert unused_memories(store.events(), least_shown=13) == []


def test_queries_that_find_nothing_are_named(store):
    def ask(query, signals=(), **fields):
        event_id = store.record(make_event(query, **fields))
        store.signal([Signal(event_id, *signal) for signal in signals])

    ask("Where is the yacht?", abstained=True)
    ask("the YACHT, where is it?", abstained=True)
    ask("Who is Zed?", [("thumbs_down", -1)])
    ask("What is the wifi code?", [("contradicted", 0)])
    ask("Where does Ruby work?", [("cited", 0)], abstained=True)
    ask("Nobody said anything")
    ask("Liked", [("stars", -1, 5.0)], abstained=True)
    found = no_hits(store.events())
    assert [(hit.query, hit.asked, hit.abstained, hit.unhelpful) for hit in found] == [
        ("Where is the yacht?", 2, 2, 0),
        ("What is the wifi code?", 1, 0, 1),
        ("Who is Zed?", 1, 0, 1),
    ]
    assert len(no_hits(store.events(), least_asked=2)) == 1
