"""What a report shows of a memory."""

from mnemorank import Memory, Moment
from mnemorank.evaluation.excerpts import LENGTH, excerpt


def test_a_short_text_is_shown_whole_with_its_dates():
    memory = Memory("Lives  in\nOslo", occurred_start=Moment(2021))
    assert excerpt("where", memory) == "[2021 – ongoing] Lives in Oslo"
    ended = Memory("Lived in Rome", occurred_start=Moment(2019), occurred_end=Moment(2021, 3))
    assert excerpt("where", ended) == "[2019 – 2021-03] Lived in Rome"
    assert excerpt("where", Memory("Plain")) == "Plain"


def test_a_long_text_is_shown_from_its_best_sentence_on():
    filler = "Nothing to see in this sentence. " * 40
    shown = excerpt("which degree did I graduate with", Memory(filler + "I graduated with a degree in law. " + filler))
    assert shown.startswith("… I graduated with a degree in law.")
    assert len(shown) <= LENGTH + 2
