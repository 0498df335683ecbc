"""`mnemorank audit`: check a dataset or a model for shortcuts, leaks and doubtful labels."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mnemorank.cli.arguments import add_json, positive_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mnemorank.evaluation.audits import Finding

HELP = "check a dataset or a model for shortcuts, leaks and doubtful labels"
EXAMPLE = "mnemorank audit triplets.jsonl --model mini --train train.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a file of triplets, lists or graded pairs; plain, .gz or .zst")
    parser.add_argument("--task", metavar="TASK", help="read PATH as the file of this benchmark, such as 2wiki")
    parser.add_argument(
        "--model",
        action="append",
        dest="models",
        default=[],
        metavar="M",
        help="also audit this bundled model, model folder or Hub id; may be repeated",
    )
    parser.add_argument(
        "--train",
        action="append",
        default=[],
        metavar="FILE",
        help="training data to compare with, in our formats or in that of --task; may be repeated",
    )
    parser.add_argument("--only", action="append", metavar="AUDIT", help="run only this audit; may be repeated")
    parser.add_argument(
        "--limit", type=positive_int, default=200, metavar="N", help="examples that models score (default: 200)"
    )
    parser.add_argument("--strict", action="store_true", help="exit with code 1 if an audit fails")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from mnemorank.cli.output import print_json, progress
    from mnemorank.data.benchmarks import loaders
    from mnemorank.evaluation.audits import AuditInput, audits, read_audit_file, read_training_file
    from mnemorank.model.model import Model

    task = loaders[arguments.task] if arguments.task else None
    examples, is_triplets = read_audit_file(Path(arguments.path).expanduser(), task)
    train = [example for file in arguments.train for example in read_training_file(Path(file).expanduser(), task)]
    selected = [audits[name] for name in arguments.only or audits]
    data = AuditInput(
        examples,
        is_triplets,
        {name: Model.load(name) for name in arguments.models},
        train if arguments.train else None,
        arguments.limit,
    )
    findings = [audit.run(data) for audit in progress(selected, "audit")]
    if arguments.json:
        print_json({"path": arguments.path, "examples": len(examples), "findings": [asdict(f) for f in findings]})
    else:
        print(_format(arguments.path, len(examples), findings))
    return int(arguments.strict and any(finding.verdict == "fail" for finding in findings))


def _format(path: str, count: int, findings: Sequence[Finding]) -> str:
    from mnemorank.cli.output import DIM, GREEN, RED, YELLOW, paint, shorten, terminal_width

    colors = {"pass": GREEN, "warn": YELLOW, "fail": RED, "skipped": DIM}
    name_width = max(len(finding.audit) for finding in findings)
    lines = [f"{path}: {count} examples", ""]
    for finding in findings:
        number = "–" if finding.number is None else f"{finding.number:.3f}"
        verdict = paint(f"{finding.verdict:<8}", colors[finding.verdict])
        lines.append(f"{finding.audit:<{name_width}}  {number:>7}  {verdict} {finding.summary}")
        lines += [f"    · {shorten(case, terminal_width(180) - 6)}" for case in finding.examples]
    return "\n".join(lines)
