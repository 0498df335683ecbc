"""mnemorank audit: find out whether a dataset or a model cheats."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mnemorank.cli.output import add_json, positive_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mnemorank.evaluation.audits import Finding

HELP = "find shortcuts, leaks and doubtful labels in a dataset or a model"
EXAMPLE = "mnemorank audit triplets.jsonl --model mini --train train.jsonl"

_COLOURS = {"pass": 32, "warn": 33, "fail": 31, "skipped": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="triplets, lists or graded pairs; plain, .gz or .zst")
    parser.add_argument("--task", metavar="TASK", help="read PATH as this benchmark's file, such as 2wiki")
    parser.add_argument(
        "--model",
        action="append",
        dest="models",
        default=[],
        metavar="M",
        help="bundled model, model folder or hf:org/name, may be repeated; without one only the dataset is audited",
    )
    parser.add_argument(
        "--train",
        action="append",
        default=[],
        metavar="FILE",
        help="what a model was trained on, in our formats or TASK's; may be repeated",
    )
    parser.add_argument("--only", action="append", metavar="AUDIT", help="run only this audit, may be repeated")
    parser.add_argument(
        "--limit", type=positive_number, default=200, metavar="N", help="examples a model is asked about (default: 200)"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if an audit fails")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from mnemorank.cli.output import print_json, progress
    from mnemorank.data.benchmarks import loaders
    from mnemorank.evaluation.audits import Material, audits, read_audited, read_training
    from mnemorank.model.model import Model

    task = loaders[arguments.task] if arguments.task else None
    examples, in_pairs = read_audited(Path(arguments.path).expanduser(), task)
    train = [example for file in arguments.train for example in read_training(Path(file).expanduser(), task)]
    chosen = [audits[name] for name in arguments.only or audits]
    material = Material(
        examples,
        in_pairs,
        {name: Model.load(name) for name in arguments.models},
        train if arguments.train else None,
        arguments.limit,
    )
    findings = [audit.run(material) for audit in progress(chosen, "audit")]
    if arguments.json:
        print_json({"path": arguments.path, "examples": len(examples), "findings": [asdict(one) for one in findings]})
    else:
        print(_shown(arguments.path, len(examples), findings))
    return int(arguments.strict and any(one.verdict == "fail" for one in findings))


def _shown(path: str, count: int, findings: Sequence[Finding]) -> str:
    from mnemorank.cli.output import paint, shorten, terminal_width

    width = max(len(one.audit) for one in findings)
    lines = [f"{path}: {count} examples", ""]
    for one in findings:
        number = "–" if one.number is None else f"{one.number:+.3f}" if one.number < 0 else f"{one.number:.3f}"
        verdict = paint(f"{one.verdict:<8}", _COLOURS[one.verdict])
        lines.append(f"{one.audit:<{width}}  {number:>7}  {verdict} {one.summary}")
        lines += [f"    · {shorten(case, terminal_width(180) - 6)}" for case in one.examples]
    return "\n".join(lines)
