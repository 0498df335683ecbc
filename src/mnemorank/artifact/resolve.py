"""Model artifacts: from a model's name to its folder and manifest.

An artifact is a folder in the usual Hugging Face layout plus `mnemorank.json`, its manifest. Remote models have no
folder, only a manifest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mnemorank.artifact.manifest import (
    DEFAULT_MAX_LENGTH,
    MANIFEST,
    Manifest,
    loadable_files,
    read_manifest,
    sha256,
)
from mnemorank.errors import ArtifactError, MissingExtraError

HUB_PREFIX = "hf:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[\w./-]+)?")
_SPLIT_FILES = ["encoder.onnx", "joint.onnx", "weights.bin"]
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "model.onnx", "onnx/model.onnx", *_SPLIT_FILES]
# Architectures whose position ids start after the padding token's, so that two positions are unused.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet")
_MAX_LENGTH_CAUSAL_LM = 8192

# Manifests of models without a folder, by the scheme of their address; see `register_scheme`.
_schemes: dict[str, Callable[[str], Manifest]] = {}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model folder and its manifest.

    :param has_manifest: False if the folder has no `mnemorank.json` and the manifest was inferred from its files.
    """

    path: Path
    manifest: Manifest
    has_manifest: bool

    @property
    def fingerprint(self) -> str:
        """A short hash that identifies these weights and settings, for caches and event logs."""
        content = self.manifest.to_json() if self.has_manifest else str(self.path.resolve())
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @property
    def reading_fingerprint(self) -> str:
        """A short hash that identifies what the model reads of a memory, whatever its calibration and weights are."""
        manifest = self.manifest
        hashes = manifest.files or {path.name: sha256(path) for path in self.path.iterdir() if path.is_file()}
        content = [sorted(hashes.items()), manifest.format, manifest.max_length, asdict(manifest.windows)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def file(self, *names: str) -> Path:
        """Return the path of the first of the named files that exists."""
        for name in names:
            if (self.path / name).is_file():
                return self.path / name
        raise ArtifactError(f"{self.path}: {' or '.join(names)} is missing")

    def verify(self) -> None:
        """Check the files against the hashes in the manifest. If it has hashes, no file may be without one."""
        unlisted = sorted(loadable_files(self.path) - set(self.manifest.files)) if self.manifest.files else ()
        if unlisted:
            raise ArtifactError(f"{self.path / unlisted[0]}: has no hash in {MANIFEST}; it was added after export")
        for name, expected in self.manifest.files.items():
            path = self.file(name)
            if sha256(path) != expected:
                raise ArtifactError(
                    f"{path}: does not match the hash in {MANIFEST}; the file is damaged or was changed after export"
                )


def register_scheme(scheme: str, read: Callable[[str], Manifest]) -> None:
    """Let `load_artifact` accept addresses of models that have no folder.

    :param scheme: what precedes the colon of such an address, such as `tei`.
    :param read: returns the manifest of the model at an address.
    """
    _schemes[scheme] = read


def load_artifact(name: str | Path) -> Artifact:
    """Find a model and read its manifest.

    :param name: a bundled model (`mini`), a folder, a Hugging Face Hub id (`org/name`, or `hf:org/name`, both with an
        optional `@revision`), or the address of a remote model (`tei:http://127.0.0.1:8080`).
    """
    if isinstance(name, str) and (read := _schemes.get(name.partition(":")[0])) and ":" in name:
        return Artifact(Path(name), read(name), has_manifest=True)
    path = resolve(name)
    if not (path / MANIFEST).exists():
        return Artifact(path, _infer_manifest(path), has_manifest=False)
    manifest = read_manifest(path / MANIFEST)
    _check_positions(path, manifest)
    return Artifact(path, manifest, has_manifest=True)


def _check_positions(path: Path, manifest: Manifest) -> None:
    config = read_json_object(path / "config.json")
    positions = config.get("max_position_embeddings")
    if manifest.family == "remote" or not isinstance(positions, int) or positions <= 8:
        return
    usable = usable_positions(positions, config.get("model_type"))
    if manifest.max_length > usable:
        raise ArtifactError(f"{path / MANIFEST}: max_length: {manifest.max_length} is more than the model's {usable}")


def resolve(name: str | Path) -> Path:
    """Return the folder of a model, downloading it from the Hugging Face Hub if needed.

    Bundled models come first, then local folders, then the Hub; `hf:` goes straight to the Hub.
    """
    if isinstance(name, str):
        if name.startswith(HUB_PREFIX):
            return _download(name, name.removeprefix(HUB_PREFIX))
        if name in bundled_models():
            return Path(str(files("mnemorank") / "assets" / "models" / name))
    path = Path(name).expanduser()
    if str(name) and path.is_dir():  # Path("") is the current folder
        return path
    if path.is_file():
        raise ArtifactError(f"{path}: is a file; expected a model folder (with model.onnx and tokenizer.json)")
    if isinstance(name, str) and _HUB_ID.fullmatch(name):
        return _download(name, name)
    raise ArtifactError(
        f"no model {str(name)!r}; expected a bundled model ({', '.join(bundled_models()) or 'none'}), an existing "
        "folder, a Hugging Face Hub id (org/name) or a remote address (such as tei:http://127.0.0.1:8080)"
    )


def bundled_models() -> list[str]:
    """Return the names of the models that come with the package."""
    folder = files("mnemorank") / "assets" / "models"
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if (entry / MANIFEST).is_file())


def _download(name: str, hub_id: str) -> Path:
    """Return the folder of a Hub model in the local cache.

    :param name: the model as the caller wrote it, for errors.
    """
    # A bare id may also be a mistyped path.
    note = "" if name.startswith(HUB_PREFIX) else "no such folder, and "
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtraError(
            f"{name}: {note}models from the Hugging Face Hub need `pip install 'mnemorank[hub]'` ({error})"
        ) from error

    repository, _, revision = hub_id.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=_HUB_FILES))
    except Exception as error:  # network, authorization, cache and validation errors share no base class
        reason = " ".join(str(error).split())  # the messages of huggingface_hub have several lines
        raise ArtifactError(
            f"{name}: {note}the model could not be downloaded from the Hugging Face Hub: {reason}"
        ) from error


def _infer_manifest(path: Path) -> Manifest:
    """Return the manifest of a plain Hugging Face folder: text only, no calibration, template by architecture."""
    family = infer_family(path)
    return Manifest(
        name=path.resolve().name,
        family=family,
        template=_infer_template(path, family),
        score_kind="probability" if family == "yes-no" else "logit",
        max_length=_infer_max_length(path),
    )


def infer_family(path: Path) -> str:
    """Return the scorer family of a folder without a manifest, by its files."""
    if (path / "model.onnx").is_file() or (path / "onnx" / "model.onnx").is_file():
        return "onnx"
    if (path / "adapter_config.json").is_file():
        return "yes-no" if read_json_object(path / "adapter_config.json").get("task_type") == "CAUSAL_LM" else "lora"
    config = read_json_object(path / "config.json")
    if not config:
        raise ArtifactError(
            f"{path}: is not a model folder; expected {MANIFEST}, model.onnx, adapter_config.json or config.json"
        )
    return "yes-no" if _is_causal_lm(config) else "torch"


def _infer_template(path: Path, family: str) -> str:
    """Return the template of the best-known reranker of this architecture; the probe warns if it is the wrong one."""
    model_type = str(read_json_object(path / "config.json").get("model_type", ""))
    if family == "yes-no":
        return {"qwen2": "mxbai", "gemma": "gemma", "gemma2": "gemma"}.get(model_type, "yes-no")
    is_decoder = model_type.startswith(("qwen", "llama", "mistral", "gemma", "phi"))
    if family == "lora" or is_decoder:
        return "instruct"
    tokenizer = path / "tokenizer.json"
    return "features" if tokenizer.is_file() and b'"[REASONING]"' in tokenizer.read_bytes() else "pair"


def _infer_max_length(path: Path) -> int:
    """Return the longest input that the folder's files allow, at most 512 tokens (8192 for language models)."""
    config = read_json_object(path / "config.json")
    limits = [_MAX_LENGTH_CAUSAL_LM if _is_causal_lm(config) else DEFAULT_MAX_LENGTH]
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions > 8:
        limits.append(usable_positions(positions, config.get("model_type")))
    tokenizer_limit = read_json_object(path / "tokenizer_config.json").get("model_max_length")
    if isinstance(tokenizer_limit, int) and 8 < tokenizer_limit < 10**6:
        limits.append(tokenizer_limit)
    return min(limits)


def _is_causal_lm(config: dict[str, Any]) -> bool:
    return str((config.get("architectures") or [""])[0]).endswith("ForCausalLM")


def usable_positions(positions: int, model_type: object) -> int:
    """Return how many tokens fit an architecture with this many position embeddings."""
    return positions - 2 if model_type in _OFFSET_POSITIONS else positions


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ArtifactError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data
