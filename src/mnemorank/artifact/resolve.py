"""The artifact: a model folder in the usual Hugging Face layout plus `mnemorank.json`, its manifest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mnemorank.artifact.manifest import DEFAULT_MAX_LENGTH, MANIFEST, Manifest, read_manifest, sha256
from mnemorank.errors import ArtifactError, MissingExtraError

# Their positions start behind the padding token's, the second of the table.
_BEHIND_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model folder that was found and whose manifest was read."""

    path: Path
    manifest: Manifest
    has_manifest: bool

    @property
    def fingerprint(self) -> str:
        """Short name of exactly these weights and settings, for caches and event logs."""
        content = self.manifest.to_json() if self.has_manifest else str(self.path.resolve())
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def file(self, *names: str) -> Path:
        """The first of the named files that exists."""
        for name in names:
            if (self.path / name).is_file():
                return self.path / name
        raise ArtifactError(f"{self.path}: {' or '.join(names)} is missing")

    def verify(self) -> None:
        """Check every hash of the manifest against the file on disk."""
        for name, expected in self.manifest.files.items():
            path = self.file(name)
            if sha256(path) != expected:
                raise ArtifactError(
                    f"{path}: does not match the hash in {MANIFEST}; the file is damaged or was changed after export"
                )


def load_artifact(name: str | Path) -> Artifact:
    """Find a model and read its manifest.

    :param name: a bundled model's name (`mini`), a folder, `hf:org/name` with an optional `@revision`, or the address
        of a remote model (`tei:http://127.0.0.1:8080`), which has no folder.
    """
    from mnemorank.scorers.remote.address import is_remote, remote_manifest  # scorers import this module

    if isinstance(name, str) and is_remote(name):
        return Artifact(Path(name), remote_manifest(name), has_manifest=True)
    path = resolve(name)
    manifest_path = path / MANIFEST
    if not manifest_path.exists():
        return Artifact(path, _default_manifest(path), has_manifest=False)
    return Artifact(path, read_manifest(manifest_path), has_manifest=True)


def resolve(name: str | Path) -> Path:
    """The folder a model name stands for."""
    text = str(name)
    if text.startswith("hf:"):
        return _from_hub(text)
    if isinstance(name, str) and name in bundled_models():
        return Path(str(files("mnemorank") / "assets" / "models" / name))
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ArtifactError(f"{path}: is a file; a model is a folder (with model.onnx and tokenizer.json)")
    raise ArtifactError(
        f"no model {text!r}: neither a bundled model ({', '.join(bundled_models()) or 'none'}) nor a folder; "
        "models of the Hugging Face hub are named hf:org/name"
    )


def bundled_models() -> list[str]:
    folder = files("mnemorank") / "assets" / "models"
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if (entry / MANIFEST).is_file())


def _from_hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingExtraError(f"{name}: models of the hub need `pip install 'mnemorank[hub]'` ({error})") from error

    repository, _, revision = name.removeprefix("hf:").partition("@")
    wanted = ["*.json", "*.txt", "*.model", "*.safetensors", "model.onnx", "onnx/model.onnx"]
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=wanted))
    except Exception as error:  # the hub client raises dozens of kinds; all mean that the model cannot be had
        raise ArtifactError(f"{name}: cannot be had from the Hugging Face hub: {error}") from error


def _default_manifest(path: Path) -> Manifest:
    """What holds for a plain Hugging Face folder: text alone, pair template, logits, no calibration.

    LoRA adapters, decoders and causal language models get the template of their reference system.
    """
    family = guess_family(path)
    return Manifest(
        name=path.resolve().name,
        family=family,
        template=_guess_template(path, family),
        score_kind="probability" if family == "yes-no" else "logit",
        max_length=_max_length(path),
    )


def guess_family(path: Path) -> str:
    """The scorer family of a folder without a manifest, by the files in it."""
    if (path / "model.onnx").is_file() or (path / "onnx" / "model.onnx").is_file():
        return "onnx"
    if (path / "adapter_config.json").is_file():
        return "yes-no" if read_json_object(path / "adapter_config.json").get("task_type") == "CAUSAL_LM" else "lora"
    config = read_json_object(path / "config.json")
    if not config:
        raise ArtifactError(
            f"{path}: is not a model folder: it has neither {MANIFEST}, model.onnx, adapter_config.json nor config.json"
        )
    architectures = config.get("architectures") or [""]
    return "yes-no" if str(architectures[0]).endswith("ForCausalLM") else "torch"


def _guess_template(path: Path, family: str) -> str:
    """The template of the reference system that the folder looks like; the probe tells where the guess was wrong."""
    model_type = str(read_json_object(path / "config.json").get("model_type", ""))
    if family == "yes-no":
        return {"qwen2": "mxbai", "gemma": "gemma", "gemma2": "gemma"}.get(model_type, "yes-no")
    is_decoder = model_type.startswith(("qwen", "llama", "mistral", "gemma", "phi"))
    if family == "lora" or is_decoder:
        return "instruct"
    tokenizer = path / "tokenizer.json"
    return "features" if tokenizer.is_file() and b'"[REASONING]"' in tokenizer.read_bytes() else "pair"


def _max_length(path: Path) -> int:
    """The longest input the folder admits to, at most 512 for encoders and 8192 for language models."""
    config = read_json_object(path / "config.json")
    positions = config.get("max_position_embeddings")
    is_causal = str((config.get("architectures") or [""])[0]).endswith("ForCausalLM")
    limits = [8192 if is_causal else DEFAULT_MAX_LENGTH]
    if isinstance(positions, int) and positions > 8:
        limits.append(usable_positions(positions, config.get("model_type")))
    stated = read_json_object(path / "tokenizer_config.json").get("model_max_length")
    if isinstance(stated, int) and 8 < stated < 10**6:
        limits.append(stated)
    return min(limits)


def usable_positions(stated: int, model_type: object) -> int:
    """How many tokens an architecture takes of the positions that its config states."""
    return stated - 2 if model_type in _BEHIND_PADDING else stated


def read_json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise ArtifactError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data
