import json
import shutil

import numpy as np
import pytest

from mnemorank import ArtifactError
from mnemorank.artifact.resolve import load_artifact
from mnemorank.export.dequantize import dequantize
from mnemorank.export.exporter import export
from mnemorank.scorers import open_scorer
from tests.helpers.tiny_models import QUERY, TEXTS


@pytest.mark.parametrize(("quantize", "error"), [("none", 1e-6), ("int8", 0.03), ("int4", 0.15)])
def test_the_weights_of_an_exported_model_are_restored(trained, tmp_path, quantize, error):
    """All but the key bias of the last layer, which has no effect and is not exported."""
    from safetensors.numpy import load_file

    export(trained, tmp_path / "onnx", quantize=quantize)
    folder = dequantize(tmp_path / "onnx", tmp_path / "torch")
    assert (folder / "tokenizer.json").is_file()
    original, restored = (load_file(path / "model.safetensors") for path in (trained, folder))
    assert original.keys() == restored.keys()
    for name, weight in original.items():
        if name != "bert.encoder.layer.2.attention.self.key.bias":
            distance = np.linalg.norm(weight - restored[name]) / max(np.linalg.norm(weight), 1e-6)
            assert distance <= error, name


def test_a_model_trained_without_segment_ids_is_restored_without_them(trained, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(trained, base)
    settings = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps({**settings, "model_input_names": ["input_ids"]}))
    export(base, tmp_path / "onnx", quantize="none")
    folder = dequantize(tmp_path / "onnx", tmp_path / "torch")  # checks scores of pairs with two segments

    from safetensors.numpy import load_file

    rows = load_file(folder / "model.safetensors")["bert.embeddings.token_type_embeddings.weight"]
    assert np.array_equal(rows[0], rows[1])


def test_other_architectures_are_rejected(tiny_onnx, tmp_path):
    with pytest.raises(ArtifactError, match="BERT"):
        dequantize(_with_config(tiny_onnx, tmp_path / "a", model_type="gpt2"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_do_not_score_like_the_graph_are_rejected(trained, tmp_path):
    """The reader takes weights in order of use: an additional product of no effect misleads it."""
    import onnx
    from onnx import numpy_helper

    export(trained, tmp_path / "onnx", quantize="none")
    path = tmp_path / "onnx" / "model.onnx"
    model = onnx.load(str(path))
    extra = numpy_helper.from_array(np.eye(32, dtype=np.float32), "extra")
    model.graph.initializer.append(extra)
    first = next(node for node in model.graph.node if node.op_type == "Attention")
    node = onnx.helper.make_node("MatMul", [first.input[0], "extra"], ["unused"])
    model.graph.node.insert(list(model.graph.node).index(first), node)
    onnx.save(model, str(path))
    manifest = json.loads((tmp_path / "onnx" / "mnemorank.json").read_text())
    (tmp_path / "onnx" / "mnemorank.json").write_text(json.dumps({**manifest, "files": {}}))
    with pytest.raises(ArtifactError):
        dequantize(tmp_path / "onnx", tmp_path / "torch")
    assert not (tmp_path / "torch").exists()


def _with_config(model, folder, **changes):
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_a_split_encoder_is_read_back(split_onnx, split_torch, tmp_path):
    folder = dequantize(split_onnx, tmp_path / "torch")
    before, after = (open_scorer(load_artifact(path)) for path in (split_torch, folder))
    expected = before.score(QUERY, before.prepare(TEXTS))
    assert np.abs(after.score(QUERY, after.prepare(TEXTS)) - expected).mean() < 0.2 * np.std(expected)
