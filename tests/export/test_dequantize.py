import json
import shutil

import numpy as np
import pytest

from mnemorank import ArtifactError
from mnemorank.export.dequantize import dequantize
from mnemorank.export.exporter import export


@pytest.mark.parametrize(("quantize", "error"), [("none", 1e-6), ("int8", 0.03), ("int4", 0.15)])
def test_the_weights_of_an_exported_model_come_back(trained, tmp_path, quantize, error):
    """Every tensor but the last layer's key bias, which softmax drops and the export leaves out."""
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


def test_what_was_trained_without_segment_ids_comes_back_without(trained, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(trained, base)
    settings = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps({**settings, "model_input_names": ["input_ids"]}))
    export(base, tmp_path / "onnx", quantize="none")
    folder = dequantize(tmp_path / "onnx", tmp_path / "torch")  # it compares the scores of pairs with two segments

    from safetensors.numpy import load_file

    rows = load_file(folder / "model.safetensors")["bert.embeddings.token_type_embeddings.weight"]
    assert np.array_equal(rows[0], rows[1])


def test_a_model_that_is_no_bert_is_refused(tiny_onnx, tmp_path):
    with pytest.raises(ArtifactError, match="from BERT models in ONNX only"):
        dequantize(_with_config(tiny_onnx, tmp_path / "a", model_type="gpt2"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_do_not_score_like_the_graph_are_refused(trained, tmp_path):
    """Swap two weights of the same shape in the graph's file: all shapes fit, the scores do not."""
    import onnx
    from onnx import numpy_helper

    export(trained, tmp_path / "onnx", quantize="none")
    path = tmp_path / "onnx" / "model.onnx"
    model = onnx.load(str(path))
    # The reader takes weights in order of use; a graph that uses one more, of no effect, misleads it.
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
