"""The manifest of a model (`mnemorank.json`): everything about how to call it, read and checked field by field."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mnemorank._internal.atomic import write_atomic
from mnemorank.artifact.formats import formats
from mnemorank.artifact.templates import templates
from mnemorank.errors import ArtifactError

MANIFEST = "mnemorank.json"
VERSION_FILE = "version.json"  # written by the learning loop, next to the manifest
_LOADABLE = (".onnx", ".data", ".safetensors", ".json", ".txt", ".model", ".jinja")
SCHEMA = 1
FAMILIES = ("onnx", "split", "torch", "lora", "yes-no", "remote")
DEFAULT_MAX_LENGTH = 512
# What no model exceeds; a larger number in a manifest is a mistake or an attack.
_MAX_LENGTH, _MAX_WINDOWS = 1_048_576, 1000


@dataclass(frozen=True, slots=True)
class Calibration:
    """Platt scaling: relevance = sigmoid(scale · logit + bias). Monotone, since the scale is above 0."""

    scale: float = 1.0
    bias: float = 0.0


def _weight(maximum: float = 1e3, default: float | None = 0.0) -> Any:
    return field(default=default, metadata={"maximum": maximum})


@dataclass(frozen=True, slots=True)
class PipelineWeights:
    """How much each part of the ranking pipeline adds to the model's log-odds of relevance.

    The manifest sets them, `Options(weights={...})` overrides them by name. A new ranking stage adds a field here and a
    file in `ranking/stages`; the manifest, recipes, options, HTTP and `explain` follow from these fields.

    :param first_stage: log-odds per standard deviation of the first-stage scores in the pool.
    :param first_stage_windowed: the same for pools of memories too long to be read whole; None for the same weight.
    :param first_stage_cosine: the same for scores of the caller between -1 and 1, such as cosines; None for the same
        weight as other scores.
    :param entity_links: the maximum for a memory about something that the query or a good candidate names.
    :param same_day: the share of the lead that other memories of the same day have over the pool's mean.
    :param query_dates: the maximum for a memory from the period that the query names ("last Saturday").
    :param rescoring: the share of the best excerpt in the log-odds of a high-ranking long memory.
    """

    first_stage: float = _weight()
    first_stage_windowed: float | None = _weight(default=None)
    first_stage_cosine: float | None = _weight(default=None)
    entity_links: float = _weight()
    same_day: float = _weight(maximum=1.0)
    query_dates: float = _weight()
    rescoring: float = _weight(maximum=1.0)


@dataclass(frozen=True, slots=True)
class Windows:
    """How memories longer than the model's input are read.

    :param max_tokens: the longest window, None for as long as the input allows.
    :param overlap: the share of a window that is repeated in the next.
    :param max_count: how many windows of a memory are scored, the best by BM25. In a chat, the user's turns take the
        place of all but one.
    """

    max_tokens: int | None = None
    overlap: float = 0.2
    max_count: int = 4


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about how to call a model. docs/reference/manifest.md describes each field.

    :param first_stage_method: standardize the first stage's `score` or its `rank`.
    :param long_query_terms: for queries with more terms, BM25 and entity links count less; None for never.
    :param abstain_below: abstain if the relevance of the best memory is lower.
    :param replaced_above: a memory is outdated if the model gives a higher probability that a newer one replaces it.
    :param files: the SHA-256 of each file.
    """

    name: str
    version: str = "0"
    family: str = "onnx"
    format: str = "plain"
    template: str = "pair"
    instruction: str | None = None
    score_kind: str = "logit"
    max_length: int = DEFAULT_MAX_LENGTH
    calibration: Calibration = Calibration()
    weights: PipelineWeights = PipelineWeights()
    first_stage_method: str = "score"
    long_query_terms: int | None = None
    windows: Windows = Windows()
    abstain_below: float = 0.0
    replaced_above: float = 0.5
    quantization: str = "none"
    base: str | None = None
    recipe: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest. Errors name the file and the field."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ArtifactError(f"{path}: expected a JSON object, got {type(data).__name__}")
    schema = data.pop("schema", None)
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ArtifactError(f"{path}: schema: expected {SCHEMA}, got {schema!r}")
    if schema > SCHEMA:
        raise ArtifactError(f"{path}: schema {schema} is newer than the supported schema {SCHEMA}; upgrade mnemorank")
    return _checked(data, path)


def write_manifest(folder: Path, manifest: Manifest, more_files: Iterable[str] = ()) -> Manifest:
    """Write the manifest with the hashes of the artifact's files; an existing one is replaced atomically.

    :param more_files: to hash in addition to `loadable_files`.
    """
    names = sorted({*loadable_files(folder), *more_files})
    hashed = replace(manifest, files={name: sha256(folder / name) for name in names})
    write_atomic(folder / MANIFEST, hashed.to_json())
    return hashed


def loadable_files(folder: Path) -> set[str]:
    """Return the names of the files in a model folder that may influence what the model does."""
    files = [path for parent in (folder, folder / "onnx") if parent.is_dir() for path in parent.iterdir()]
    return {
        path.relative_to(folder).as_posix()
        for path in files
        if path.suffix in _LOADABLE and path.name not in (MANIFEST, VERSION_FILE) and path.is_file()
    }


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _number(low: float, high: float, exclusive: bool = False) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return is_number and (low < value if exclusive else low <= value) and value <= high  # type: ignore[operator]

    return check


def _number_or_null(low: float, high: float) -> Callable[[object], bool]:
    return lambda value: value is None or _number(low, high)(value)


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _mapping(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _hashes(value: object) -> bool:
    return _mapping(value) and all(
        isinstance(digest, str) and len(digest) == 64 and not Path(name).is_absolute() and ".." not in Path(name).parts
        for name, digest in value.items()  # type: ignore[attr-defined]
    )


def _count(low: int, high: float = math.inf) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


# What each field must be, in words and as a check. Recipes use them, too.
CHECKS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "name": ("a non-empty string", _text),
    "version": ("a non-empty string", _text),
    "family": (f"one of {', '.join(FAMILIES)}", lambda value: value in FAMILIES),
    "format": (f"one of {', '.join(formats)}", lambda value: value in formats),
    "template": (f"one of {', '.join(templates)}", lambda value: value in templates),
    "instruction": ("a string or null", _text_or_null),
    "score_kind": ("logit or probability", lambda value: value in ("logit", "probability")),
    "max_length": (f"a whole number from 8 to {_MAX_LENGTH}", _count(8, _MAX_LENGTH)),
    "calibration.scale": ("a number above 0", _number(0, 1e6, exclusive=True)),
    "calibration.bias": ("a number", _number(-1e6, 1e6)),
    "first_stage_method": ("score or rank", lambda value: value in ("score", "rank")),
    "long_query_terms": ("a whole number from 1, or null", lambda value: value is None or _count(1)(value)),
    "windows.max_tokens": ("a whole number from 8, or null", lambda value: value is None or _count(8)(value)),
    "windows.overlap": ("a number from 0 to 0.9", _number(0, 0.9)),
    "windows.max_count": (f"a whole number from 1 to {_MAX_WINDOWS}", _count(1, _MAX_WINDOWS)),
    "abstain_below": ("a number from 0 to 1", _number(0, 1)),
    "replaced_above": ("a number from 0 to 1", _number(0, 1)),
    "quantization": ("a non-empty string", _text),
    "base": ("a string or null", _text_or_null),
    "recipe": ("an object or null", lambda value: value is None or _mapping(value)),
    "evaluation": ("an object", _mapping),
    "files": ("an object of file name to SHA-256, inside the folder", _hashes),
}
for _field in fields(PipelineWeights):
    _maximum, _may_be_null = _field.metadata["maximum"], _field.default is None
    CHECKS[f"weights.{_field.name}"] = (
        ("a number from 0" if _maximum > 1 else "a number from 0 to 1") + (", or null" if _may_be_null else ""),
        _number_or_null(0, _maximum) if _may_be_null else _number(0, _maximum),
    )
_SECTIONS = {"calibration": Calibration, "weights": PipelineWeights, "windows": Windows}


def _checked(data: dict[str, Any], path: Path) -> Manifest:
    if "name" not in data:
        raise ArtifactError(f"{path}: name: required")
    arguments: dict[str, Any] = {}
    for key, value in data.items():
        if key in _SECTIONS:
            arguments[key] = _checked_section(key, value, path)
        else:
            arguments[key] = _checked_value(key, value, path)
    return Manifest(**arguments)


def _checked_section(key: str, value: object, path: Path) -> object:
    if not isinstance(value, dict):
        raise ArtifactError(f"{path}: {key}: expected an object, got {value!r:.60}")
    return _SECTIONS[key](**{name: _checked_value(f"{key}.{name}", part, path) for name, part in value.items()})


def _checked_value(key: str, value: object, path: Path) -> object:
    if key not in CHECKS:
        known = ", ".join(f.name for f in fields(Manifest))
        raise ArtifactError(f"{path}: {key}: unknown field; expected one of {known}")
    expected, check = CHECKS[key]
    try:
        is_valid = check(value)
    except TypeError:  # an unhashable value instead of a name
        is_valid = False
    if not is_valid:
        raise ArtifactError(f"{path}: {key}: expected {expected}, got {value!r:.60}")
    return value
