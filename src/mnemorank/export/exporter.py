"""Export: from the folder that training wrote to a small ONNX artifact, with a check that it is as good."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mnemorank.artifact.manifest import MANIFEST, Manifest, write_manifest
from mnemorank.artifact.resolve import Artifact, load_artifact
from mnemorank.data.examples import Example
from mnemorank.errors import InputError, MissingExtraError
from mnemorank.evaluation.metrics import Judgments

try:
    import onnx as _onnx  # noqa: F401
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"export needs `pip install 'mnemorank[train]'` ({error})") from error

from mnemorank.export.calibration_data import calibration_examples, sample_examples
from mnemorank.export.fusion import block_weights, fuse
from mnemorank.export.graph import Feed, bert_layers, load_classifier, tokenizer_folders, write_graph
from mnemorank.export.parity import MEASURE, Parity, ParityError, compare, feeds, torch_scores
from mnemorank.export.quantize import int8_dynamic, int8_static
from mnemorank.export.weights import Grid
from mnemorank.scorers.encoding import InputWriter
from mnemorank.scorers.torch.loading import load_tokenizing
from mnemorank.training.base_model import positions_of
from mnemorank.training.checkpoints import whole_folder
from mnemorank.training.dataset import that_fit

__all__ = ["KINDS", "Exported", "Parity", "ParityError", "export"]

KINDS = ("none", "int8", "int8-static", "int4")
DEFAULT_TOLERANCE = 0.01
_GRID = "qat.safetensors"


@dataclass(frozen=True, slots=True)
class Exported:
    path: Path
    manifest: Manifest
    parity: Parity


def export(
    model: str | Path,
    output: Path,
    quantize: str = "int8",
    *,
    dev: Sequence[Example] = (),
    calibration: Sequence[Example] = (),
    tolerance: float = DEFAULT_TOLERANCE,
) -> Exported:
    """Write the model as `model.onnx`, `tokenizer.json`, `config.json` and `mnemorank.json`.

    The output takes its place only when it is whole and as good as it must be.

    :param model: a trained folder: a sequence classifier, or a LoRA adapter, which is merged into its base.
    :param quantize: `none`, `int8` (dynamic), `int8-static`, or `int4` (weights).
    :param dev: examples to measure quality by, before and after. Questions that leave the model no room for a memory
        are left out, here and of `calibration`; how many, the parity's note says.
    :param calibration: examples whose pairs tell the ranges of activations; the dev examples by default, else
        some of our dated triplets.
    :param tolerance: by how much the dev metric (NDCG@10) may fall.
    """
    if quantize not in KINDS:
        raise InputError(f"expected one of {', '.join(KINDS)}, got {quantize!r}", field="quantize")
    if not tolerance >= 0:
        raise InputError(f"expected a number from 0, got {tolerance!r}", field="tolerance")
    _check_dev(dev)
    artifact = load_artifact(model)
    _check_output(output, artifact)
    grid = Grid.read(artifact.path / _GRID) if (artifact.path / _GRID).is_file() else None
    if quantize == "int4" and grid is not None and grid.bits != 4:
        raise InputError(
            f"{artifact.path / _GRID} holds INT{grid.bits} weights; INT4 would undo what was trained; "
            f"int{grid.bits} keeps it",
            field="quantize",
        )
    network = load_classifier(artifact)
    artifact = _fitting(artifact, network.config)
    tokenizer = load_tokenizing(*tokenizer_folders(artifact)).tokenizer
    told: list[str] = []
    writer = InputWriter(tokenizer, artifact.manifest)
    dev, calibration = (
        _readable(examples, writer, told.append, what)
        for what, examples in (("dev", dev), ("calibration", calibration))
    )
    _check_dev(dev)
    compared = feeds(dev or sample_examples(), tokenizer, artifact.manifest)
    calibrating: list[Feed] = []
    if quantize.startswith("int8"):
        calibrating = feeds(calibration or dev or list(calibration_examples()), tokenizer, artifact.manifest)
    expected = torch_scores(network, compared)
    with whole_folder(output) as folder:
        network.config.save_pretrained(str(folder))
        tokenizer.save(str(folder / "tokenizer.json"))
        work = folder / "work"
        work.mkdir()
        plain = work / "fp32.onnx"
        is_bert = bert_layers(network) is not None
        _write_plain(artifact, plain)
        name, note = _quantize(quantize, artifact, plain, folder / "model.onnx", calibrating, is_bert, grid)
        note = "; ".join([*told, *([note] if note else [])]) or None
        parity = replace(compare(plain, folder / "model.onnx", expected, compared), note=note)
        manifest = replace(artifact.manifest, family="onnx", quantization=name, files={})
        if dev:
            parity = _with_dev(parity, manifest, folder, plain, dev)
        parity.check(tolerance)
        shutil.rmtree(work)
        manifest = replace(manifest, evaluation={**manifest.evaluation, "parity": parity.to_dict()})
        names = [path.name for path in folder.iterdir() if path.is_file()]
        manifest = write_manifest(folder, manifest, names)
    return Exported(output, manifest, parity)


def _check_dev(dev: Sequence[Example]) -> None:
    if dev and not any(Judgments.of(example).has_relevant for example in dev):
        raise InputError("no candidate is relevant; there is nothing to judge quality by", field="dev")


def _readable(examples: Sequence[Example], writer: InputWriter, say: Callable[[str], None], what: str) -> list[Example]:
    """The examples whose questions leave room for a memory; how many do not is said. Texts there must be."""
    fitting = that_fit(examples, writer, say, what)
    if fitting and not any(memory.text.strip() for example in fitting for memory in example.memories):
        raise InputError(f"{what}: every memory is blank; there is nothing to score")
    return fitting


def _write_plain(artifact: Artifact, path: Path, calibration: Sequence[Feed] = (), one_node: bool = True) -> None:
    network = load_classifier(artifact)  # anew: writing the graph changes the layers
    config, is_bert = network.config, bert_layers(network) is not None
    write_graph(network, path, one_node_attention=one_node, calibration=calibration)
    if not is_bert:
        fuse(path, config)


def _quantize(
    kind: str,
    artifact: Artifact,
    plain: Path,
    target: Path,
    calibration: Sequence[Feed],
    is_bert: bool,
    grid: Grid | None,
) -> tuple[str, str | None]:
    """Write the quantized graph; returns what the manifest calls it, and what is to be said about trained codes."""
    if kind == "none":
        shutil.copy(plain, target)
        return "none", None
    source = plain.with_name("source.onnx")
    if kind == "int4" or (kind == "int8" and grid is not None and grid.bits == 8):
        _write_plain(artifact, source, one_node=False)
        lost = block_weights(source, target, 4, grid)
        told = (
            f"{len(lost)} trained layers were not found in the graph and rounded anew, such as {min(lost, default='')}"
        )
        return f"int{grid.bits if grid else 4}-weights", told if lost else None
    if is_bert:
        _write_plain(artifact, source, calibration)
    else:
        shutil.copy(plain, source)
    told = "trained for INT{0} weights in blocks, rounded anew here; --quantize int{0} keeps them"
    note = told.format(grid.bits) if grid else None
    if kind == "int8":
        int8_dynamic(source, target)
        return "int8-dynamic", note
    int8_static(source, target, calibration)
    return "int8-static", note


def _with_dev(parity: Parity, manifest: Manifest, folder: Path, plain: Path, dev: Sequence[Example]) -> Parity:
    """The dev metric through the pipeline's own reading, by the fp32 graph and by the exported one."""
    from mnemorank.model.model import Model
    from mnemorank.scorers.onnx import OnnxScorer
    from mnemorank.training.evaluation import measure_model

    fp32 = plain.with_name("fp32")
    fp32.mkdir()
    shutil.copy(plain, fp32 / "model.onnx")
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(folder / name, fp32 / name)
    values = []
    for path, quantization in ((fp32, "none"), (folder, manifest.quantization)):
        own = replace(manifest, quantization=quantization)
        model = Model(own, OnnxScorer(Artifact(path, own, has_manifest=True)))
        values.append(measure_model(model, dev).mean(MEASURE))
        model.close()
    return replace(parity, metric=MEASURE, metric_before=values[0], metric_after=values[1])


def _fitting(artifact: Artifact, config: Any) -> Artifact:
    """The artifact with a length that the model has positions for; an adapter's folder does not say."""
    positions = positions_of(config)
    if positions is None:
        return artifact
    length = min(artifact.manifest.max_length, positions)
    return replace(artifact, manifest=replace(artifact.manifest, max_length=length))


def _check_output(output: Path, artifact: Artifact) -> None:
    """Only an earlier export, an empty folder or nothing is replaced; never the model that is being exported."""
    if not output.exists():
        return
    if output.resolve() == artifact.path.resolve():
        raise InputError(f"{output}: is the model itself; export to another folder")
    if not output.is_dir():
        raise InputError(f"{output}: is a file; export to a folder")
    names = sorted(path.name for path in output.iterdir())
    if not names:
        return
    there = load_artifact(output).manifest if MANIFEST in names else None
    if there is None or there.family != "onnx":
        raise InputError(f"{output}: holds something else than an earlier export; choose another or remove it")
    strange = [name for name in names if name not in (MANIFEST, *there.files)]
    if strange:
        raise InputError(f"{output}: holds {strange[0]}, which is not of the export there; move it, or choose another")
