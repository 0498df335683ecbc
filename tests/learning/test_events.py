import subprocess
import sys

from mnemorank import Memory, Reranker
from mnemorank.learning.events import RerankEvent, ShownMemory, new_event_id


def test_an_event_is_created_from_a_ranking(tiny_onnx):
    with Reranker(tiny_onnx) as reranker:
        ranking = reranker.rerank("ruby", [{"id": "c", "text": "cat"}, {"id": "r", "text": "ruby"}])
    event = RerankEvent.from_ranking("ruby", ranking, "0001", user="ann", propensities=[0.9, 0.8])
    assert [(shown.rank, shown.memory_id, shown.index) for shown in event.shown] == [(1, "r", 1), (2, "c", 0)]
    assert [shown.propensity for shown in event.shown] == [0.9, 0.8]
    assert [shown.raw_score for shown in event.shown] == [result.raw_score for result in ranking]
    assert (event.query, event.model_version, event.user, event.tenant) == ("ruby", "0001", "ann", "default")
    assert (event.degraded, event.test, event.keep_texts) == (False, False, True)


def test_event_ids_are_unique_and_hexadecimal():
    ids = [new_event_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert {len(event_id) for event_id in ids} == {32}
    assert all(int(event_id, 16) for event_id in ids)


def test_identities_distinguish_dates_and_fall_back_to_the_id():
    dated = [ShownMemory(1, Memory("lunch", occurred_start=date), text_hash="h") for date in ("2019", "2024")]
    assert dated[0].identity != dated[1].identity
    assert ShownMemory(1, Memory("lunch"), text_hash="h").identity == "h"
    without_text = [ShownMemory(1, None, memory_id, "h").identity for memory_id in ("a", "b", None)]
    assert len(set(without_text)) == 3


def test_events_need_no_extra():
    """The server records events without the learn extra."""
    script = (
        "import sys\n"
        "for name in ('sqlalchemy', 'pydantic', 'croniter', 'filelock', 'ir_measures'): sys.modules[name] = None\n"
        "import mnemorank.learning.events, mnemorank.learning.exploration, mnemorank.learning.signals"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
