"""`serve --states`: what requests read of memories is shared and kept."""

import pytest

from mnemorank import InputError, Memory, Model
from mnemorank.server.errors import SwapError

MEMORIES = ["ruby works at aurora labs", "the cat sleeps", "a trip to lisbon in march 2024 " * 20]
BODY = {"query": "where does ruby work", "memories": MEMORIES}


@pytest.mark.parametrize("batching", [True, False])
def test_requests_share_and_keep_states(start, split_onnx, tmp_path, batching):
    server = start(model=str(split_onnx), states=tmp_path / "states", batching=batching)
    first = server.client.post("/v1/memories/rerank", json=BODY).raise_for_status().json()
    second = server.client.post("/v1/memories/rerank", json=BODY).raise_for_status().json()
    assert first["results"] == second["results"]
    server.app.state.slot.current.model.state_file.close()  # writes what is pending
    model = Model.load(split_onnx, states=tmp_path / "states")
    assert model.prepare([Memory(text) for text in MEMORIES[:2]]).known == 2
    model.close()


def test_prepared_memories_give_the_same_response(start, split_onnx, tmp_path):
    model = Model.load(split_onnx, states=tmp_path)
    model.prepare([Memory(text) for text in MEMORIES])
    model.close()
    responses = [
        start(model=str(split_onnx), **settings).client.post("/v1/memories/rerank", json=BODY).json()
        for settings in ({}, {"states": tmp_path})
    ]
    assert responses[0]["results"] == responses[1]["results"]
    assert responses[0]["degraded"] is None


def test_a_model_that_is_not_split_is_refused(start, tiny_onnx, split_onnx, tmp_path):
    server = start(model=str(split_onnx), states=tmp_path)
    with pytest.raises(SwapError) as raised:
        server.app.state.slot.swap(str(tiny_onnx))
    assert isinstance(raised.value.__cause__, InputError)
    assert raised.value.__cause__.code == "not_split"
    assert server.client.post("/v1/memories/rerank", json=BODY).status_code == 200
