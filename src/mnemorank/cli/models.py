"""`mnemorank models`: list, show and verify models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mnemorank.cli.arguments import add_json

if TYPE_CHECKING:
    from mnemorank.artifact.resolve import Artifact

HELP = "list the bundled models, show the manifest of a model, or verify its files"
EXAMPLE = "mnemorank models show mini"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "verify"))
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a bundled model, a model folder or a Hub id (default: mini)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    {"list": _list, "show": _show, "verify": _verify}[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> None:
    from mnemorank.artifact.resolve import bundled_models, load_artifact
    from mnemorank.cli.output import print_json, table
    from mnemorank.errors import InputError

    if arguments.model:
        raise InputError(f"`models list` takes no model; try `mnemorank models show {arguments.model}`", field="MODEL")
    artifacts = [load_artifact(name) for name in bundled_models()]
    if arguments.json:
        print_json([{"name": a.manifest.name, "version": a.manifest.version, "bytes": _size(a)} for a in artifacts])
        return
    rows = [
        (a.manifest.name, a.manifest.version, f"{_size(a) / 1e6:.1f} MB", a.manifest.quantization, a.manifest.format)
        for a in artifacts
    ]
    print(table(rows, ("name", "version", "size", "quantization", "format"), right=(2,)))


def _show(arguments: argparse.Namespace) -> None:
    from dataclasses import asdict

    from mnemorank._internal.hardware import detect_hardware
    from mnemorank.artifact.resolve import load_artifact
    from mnemorank.cli.output import print_json, table

    artifact = load_artifact(arguments.model or "mini")
    manifest = asdict(artifact.manifest)
    hardware = {key: value for key, value in asdict(detect_hardware()).items() if value is not None}
    if arguments.json:
        identity = {"fingerprint": artifact.fingerprint, "has_manifest": artifact.has_manifest}
        print_json({**manifest, **identity, "hardware": hardware})
        return
    plain = {key: value for key, value in manifest.items() if key not in ("recipe", "evaluation", "files")}
    rows = [(key, _format(value)) for key, value in plain.items() if value is not None]
    rows += [(f"evaluation.{key}", _format(value)) for key, value in artifact.manifest.evaluation.items()]
    rows += [("fingerprint", artifact.fingerprint), ("size", f"{_size(artifact) / 1e6:.1f} MB")]
    rows += [(f"hardware.{key}", _format(value)) for key, value in hardware.items()]
    print(table(rows, ("field", "value")))
    if not artifact.has_manifest:
        print("\nThe folder has no mnemorank.json; these are the defaults for a plain Hugging Face folder.")


def _verify(arguments: argparse.Namespace) -> None:
    from mnemorank.artifact.manifest import MANIFEST
    from mnemorank.artifact.resolve import load_artifact
    from mnemorank.cli.output import print_json
    from mnemorank.errors import ArtifactError
    from mnemorank.model.model import Model

    artifact = load_artifact(arguments.model or "mini")
    if artifact.has_manifest and artifact.manifest.family != "remote" and not artifact.manifest.files:
        raise ArtifactError(f"{artifact.path / MANIFEST}: files: has no hashes to check")
    artifact.verify()
    Model.load(arguments.model or "mini").close()
    if arguments.json:
        print_json({"model": artifact.manifest.name, "verified": sorted(artifact.manifest.files), "loads": True})
        return
    count = len(artifact.manifest.files)
    hashes = f"{count} files match their hashes" if count else "the manifest has no hashes to check"
    print(f"{artifact.manifest.name}: {hashes}, and the model loads")


def _size(artifact: Artifact) -> int:
    return sum(entry.stat().st_size for entry in Path(artifact.path).rglob("*") if entry.is_file())


def _format(value: object) -> str:
    return ", ".join(f"{k} {_format(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)
