"""mnemorank models: what models there are, what one is, whether its files are whole."""

from __future__ import annotations

import argparse

from mnemorank.cli.output import add_json

HELP = "list, show or verify models"
EXAMPLE = "mnemorank models show mini"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "show", "verify"))
    parser.add_argument("model", nargs="?", metavar="MODEL", help="bundled model, folder or hf:org/name")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int | None:
    return {"list": _list, "show": _show, "verify": _verify}[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> None:
    from mnemorank.artifact.resolve import bundled_models, load_artifact
    from mnemorank.cli.output import print_json, table
    from mnemorank.errors import InputError

    if arguments.model:
        raise InputError("models list takes no model; did you mean: mnemorank models show " + arguments.model)
    found = [load_artifact(name) for name in bundled_models()]
    if arguments.json:
        print_json([{"name": a.manifest.name, "version": a.manifest.version, "bytes": _size(a.path)} for a in found])
        return
    rows = [
        (
            a.manifest.name,
            a.manifest.version,
            f"{_size(a.path) / 1e6:.1f} MB",
            a.manifest.quantization,
            a.manifest.format,
        )
        for a in found
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
    rows = [(key, _shown(value)) for key, value in plain.items() if value is not None]
    rows += [(f"evaluation.{key}", _shown(value)) for key, value in artifact.manifest.evaluation.items()]
    rows += [("fingerprint", artifact.fingerprint), ("size", f"{_size(artifact.path) / 1e6:.1f} MB")]
    rows += [(f"hardware.{key}", _shown(value)) for key, value in hardware.items()]
    print(table(rows, ("field", "value")))
    if not artifact.has_manifest:
        print("\nThe folder has no mnemorank.json: these are the defaults for a plain Hugging Face folder.")


def _verify(arguments: argparse.Namespace) -> int:
    from mnemorank.artifact.resolve import load_artifact
    from mnemorank.cli.output import print_json
    from mnemorank.model.model import Model

    artifact = load_artifact(arguments.model or "mini")
    artifact.verify()
    Model.load(arguments.model or "mini").close()
    if arguments.json:
        print_json({"model": artifact.manifest.name, "verified": sorted(artifact.manifest.files), "loads": True})
    else:
        checked = len(artifact.manifest.files)
        whole = f"{checked} files match their hashes" if checked else "there are no hashes to check"
        print(f"{artifact.manifest.name}: {whole}, and the model loads")
    return 0


def _size(path: object) -> int:
    from pathlib import Path

    return sum(entry.stat().st_size for entry in Path(str(path)).rglob("*") if entry.is_file())


def _shown(value: object) -> str:
    return ", ".join(f"{k} {_shown(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)
