"""`mnemorank export`: a trained model as a small ONNX artifact."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "turn a trained model into a small ONNX model that runs without torch"
EXAMPLE = "mnemorank export runs/mine models/mine --quantize int8 --dev dev.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the folder that training wrote")
    parser.add_argument("output", metavar="DIR", type=Path, help="where the exported model goes")
    parser.add_argument(
        "--quantize",
        choices=("none", "int8", "int8-static", "int4"),
        default="int8",
        help="INT8 with ranges taken at run time (default) or from calibration, INT4 weights, or none (fp32)",
    )
    parser.add_argument("--dev", metavar="FILE", type=Path, help="triplets, graded pairs or lists to judge quality by")
    parser.add_argument("--calibration", metavar="FILE", type=Path, help="examples for ranges; --dev's by default")
    parser.add_argument(
        "--tolerance", type=float, default=0.01, help="by how much NDCG@10 on --dev may fall (default 0.01)"
    )
    parser.add_argument("--json", action="store_true", help="print the parity figures as JSON")


def run(arguments: argparse.Namespace) -> None:
    from mnemorank.cli.output import print_json, table
    from mnemorank.data.sources import read_examples
    from mnemorank.export.exporter import export

    exported = export(
        arguments.model,
        arguments.output,
        arguments.quantize,
        dev=list(read_examples(arguments.dev)) if arguments.dev else (),
        calibration=list(read_examples(arguments.calibration)) if arguments.calibration else (),
        tolerance=arguments.tolerance,
    )
    if arguments.json:
        print_json(
            {"path": str(exported.path), "quantization": exported.manifest.quantization, **exported.parity.to_dict()}
        )
        return
    print(table(exported.parity.rows(), ("parity", f"{exported.manifest.name}, {exported.manifest.quantization}")))
    print(f"\nwritten to {exported.path}")
