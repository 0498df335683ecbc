"""Export a trained model as a small ONNX model, and check that its quality holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mnemorank.artifact.manifest import MANIFEST, Manifest, write_manifest
from mnemorank.artifact.resolve import Artifact, load_artifact
from mnemorank.data.examples import Example
from mnemorank.errors import ConflictError, InputError, MissingExtraError

try:
    import onnx as _onnx  # noqa: F401
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"export needs `pip install 'mnemorank[train]'` ({error})") from error

from mnemorank.export.blocks import quantize_in_blocks
from mnemorank.export.calibration_data import calibration_examples, sample_examples
from mnemorank.export.graph import Feed, bert_layers, fuse, load_classifier, tokenizer_folders, write_graph
from mnemorank.export.parity import METRIC, Parity, ParityError, compare_graphs, make_feeds, torch_scores
from mnemorank.export.quantize import int8_dynamic, int8_static
from mnemorank.export.split import GRAPHS, WEIGHTS, write_split_graphs
from mnemorank.scorers.encoding import InputWriter
from mnemorank.scorers.torch.loading import load_auto_tokenizer
from mnemorank.scorers.torch.split import SplitClassifier
from mnemorank.training.base_model import max_positions
from mnemorank.training.checkpoints import new_folder
from mnemorank.training.dataset import check_dev, drop_long_queries
from mnemorank.training.qat import SCALES_FILE, WeightScales

__all__ = ["QUANTIZATIONS", "ExportResult", "Parity", "ParityError", "export"]

QUANTIZATIONS = ("none", "int8", "int8-static", "int4")
SPLIT_QUANTIZATIONS = ("none", "int8")
DEFAULT_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class ExportResult:
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
) -> ExportResult:
    """Write the model as `model.onnx`, `tokenizer.json`, `config.json` and `mnemorank.json`.

    The output appears only when it is complete and its quality is within the tolerance. Examples whose query leaves
    the model no room for a memory are dropped; the parity's note says how many.

    :param model: a trained folder: a sequence classifier, or a LoRA adapter, which is merged into its base.
    :param quantize: `none`, `int8` (dynamic), `int8-static`, or `int4` (weights).
    :param dev: examples to evaluate before and after.
    :param calibration: examples for the ranges of activations; the dev examples by default, else bundled ones.
    :param tolerance: the largest acceptable drop of the dev metric (NDCG@10).
    """
    if quantize not in QUANTIZATIONS:
        raise InputError(f"expected one of {', '.join(QUANTIZATIONS)}, got {quantize!r}", field="quantize")
    if not tolerance >= 0:
        raise InputError(f"expected a number from 0, got {tolerance!r}", field="tolerance")
    if dev:
        check_dev(dev, field="dev")
    artifact = load_artifact(model)
    _check_output(output, artifact)
    scales_file = artifact.path / SCALES_FILE
    scales = WeightScales.load(scales_file) if scales_file.is_file() else None
    if quantize == "int4" and scales is not None and scales.bits != 4:
        raise InputError(
            f"the model was trained for INT{scales.bits} weights ({scales_file}); use int{scales.bits}",
            field="quantize",
        )
    network = load_classifier(artifact)
    is_split = isinstance(network, SplitClassifier)
    if is_split and quantize not in SPLIT_QUANTIZATIONS:
        expected_names = " or ".join(SPLIT_QUANTIZATIONS)
        raise InputError(f"expected {expected_names} for a split encoder, got {quantize!r}", field="quantize")
    artifact = _limit_length(artifact, network.config)
    tokenizer = load_auto_tokenizer(*tokenizer_folders(artifact)).tokenizer
    notes: list[str] = []
    writer = InputWriter(tokenizer, artifact.manifest)
    dev = _usable_examples(dev, writer, notes.append, "dev")
    calibration = _usable_examples(calibration, writer, notes.append, "calibration")
    if dev:
        check_dev(dev, field="dev")
    compared = make_feeds(dev or sample_examples(), tokenizer, artifact.manifest)
    calibration_feeds: list[Feed] = []
    if quantize.startswith("int8"):
        examples = calibration or dev or list(calibration_examples())
        calibration_feeds = make_feeds(examples, tokenizer, artifact.manifest)
    expected = torch_scores(network, compared)
    with new_folder(output) as folder:
        if is_split:
            network.config.cosine = network.cosine.tolist()  # constants in the graph, for training from it
        network.config.save_pretrained(str(folder))
        tokenizer.save(str(folder / "tokenizer.json"))
        work = folder / "work"
        work.mkdir()
        note: str | None = None
        if is_split:
            fp32 = work / "graphs" / "model.onnx"
            name = _write_split(artifact, fp32.parent, folder, quantize, calibration_feeds or compared)
        else:
            fp32 = work / "fp32.onnx"
            is_bert = bert_layers(network) is not None
            _write_fp32(artifact, fp32)
            name, note = _quantize(quantize, artifact, fp32, folder / "model.onnx", calibration_feeds, is_bert, scales)
        parity = compare_graphs(fp32, folder / "model.onnx", expected, compared)
        parity = replace(parity, note="; ".join([*notes, *([note] if note else [])]) or None)
        family = "split" if is_split else "onnx"
        manifest = replace(artifact.manifest, family=family, quantization=name, files={})
        if dev:
            parity = _with_dev_metric(parity, manifest, folder, fp32, dev)
        parity.check(tolerance)
        shutil.rmtree(work)
        manifest = replace(manifest, evaluation={**manifest.evaluation, "parity": parity.to_dict()})
        names = [path.name for path in folder.iterdir() if path.is_file()]
        manifest = write_manifest(folder, manifest, names)
    return ExportResult(output, manifest, parity)


def _usable_examples(
    examples: Sequence[Example], writer: InputWriter, on_message: Callable[[str], None], name: str
) -> list[Example]:
    fitting = drop_long_queries(examples, writer, on_message, name)
    if fitting and not any(memory.text.strip() for example in fitting for memory in example.memories):
        raise InputError("every memory is empty", field=name, code="empty")
    return fitting


def _write_fp32(
    artifact: Artifact, path: Path, calibration: Sequence[Feed] = (), fuse_projections: bool = True
) -> None:
    network = load_classifier(artifact)  # loaded again, because writing the graph changes the layers
    config, is_bert = network.config, bert_layers(network) is not None
    write_graph(network, path, fuse_projections=fuse_projections, calibration=calibration)
    if not is_bert:
        fuse(path, config)


def _write_split(artifact: Artifact, fp32: Path, target: Path, quantize: str, calibration: Sequence[Feed]) -> str:
    """Write the graphs in fp32 and as they are shipped; return the name of the quantization for the manifest."""
    fp32.mkdir()
    write_split_graphs(load_classifier(artifact), fp32, quantize=False, calibration=calibration)
    write_split_graphs(load_classifier(artifact), target, quantize=quantize == "int8", calibration=calibration)
    return "int8-dynamic" if quantize == "int8" else "none"


def _quantize(
    quantize: str,
    artifact: Artifact,
    fp32: Path,
    target: Path,
    calibration: Sequence[Feed],
    is_bert: bool,
    scales: WeightScales | None,
) -> tuple[str, str | None]:
    """Write the quantized graph; return its name for the manifest, and a note if trained codes were lost."""
    if quantize == "none":
        shutil.copy(fp32, target)
        return "none", None
    source = fp32.with_name("source.onnx")
    if quantize == "int4" or (quantize == "int8" and scales is not None and scales.bits == 8):
        _write_fp32(artifact, source, fuse_projections=False)
        lost = quantize_in_blocks(source, target, 4, scales)
        note = f"{len(lost)} layers trained for quantization were not found in the graph and were rounded again"
        return f"int{scales.bits if scales else 4}-weights", f"{note}: {min(lost)}, …" if lost else None
    if is_bert:
        _write_fp32(artifact, source, calibration)
    else:
        shutil.copy(fp32, source)
    note = "trained for INT{0} weights in blocks, which are rounded again here; --quantize int{0} keeps them"
    if quantize == "int8":
        int8_dynamic(source, target)
    else:
        int8_static(source, target, calibration)
    name = "int8-dynamic" if quantize == "int8" else "int8-static"
    return name, note.format(scales.bits) if scales else None


def _with_dev_metric(parity: Parity, manifest: Manifest, folder: Path, fp32: Path, dev: Sequence[Example]) -> Parity:
    """Add the dev metric of the fp32 graph and of the exported one."""
    from mnemorank.model.model import Model
    from mnemorank.scorers import open_scorer
    from mnemorank.training.evaluation import evaluate_model

    fp32_folder = fp32.with_name("fp32")
    fp32_folder.mkdir()
    shutil.copy(fp32, fp32_folder / "model.onnx")
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(folder / name, fp32_folder / name)
    if manifest.family == "split":
        for name in (*GRAPHS, WEIGHTS):
            shutil.copy(fp32.with_name(name), fp32_folder / name)
    values = []
    for path, quantization in ((fp32_folder, "none"), (folder, manifest.quantization)):
        variant = replace(manifest, quantization=quantization)
        model = Model(variant, open_scorer(Artifact(path, variant, has_manifest=True)))
        values.append(evaluate_model(model, dev).mean(METRIC))
        model.close()
    return replace(parity, metric=METRIC, metric_before=values[0], metric_after=values[1])


def _limit_length(artifact: Artifact, config: Any) -> Artifact:
    """Limit the length to the model's positions, which the folder of an adapter does not know."""
    positions = max_positions(config)
    if positions is None:
        return artifact
    length = min(artifact.manifest.max_length, positions)
    return replace(artifact, manifest=replace(artifact.manifest, max_length=length))


def _check_output(output: Path, artifact: Artifact) -> None:
    """Raise unless the output is new, an empty folder, or an earlier export."""
    if not output.exists():
        return
    if output.resolve() == artifact.path.resolve():
        raise ConflictError(f"{output} is the model itself; choose another folder", field="output")
    if not output.is_dir():
        raise ConflictError(f"{output} is a file; choose a folder", field="output")
    names = sorted(path.name for path in output.iterdir())
    if not names:
        return
    existing = load_artifact(output).manifest if MANIFEST in names else None
    if existing is None or existing.family not in ("onnx", "split"):
        raise ConflictError(f"{output} is not an earlier export; choose another folder or delete it", field="output")
    foreign = [name for name in names if name not in (MANIFEST, *existing.files)]
    if foreign:
        raise ConflictError(f"{output} contains {foreign[0]}, which is not part of an export; move it", field="output")
