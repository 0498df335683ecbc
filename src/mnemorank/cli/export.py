"""`mnemorank export`: convert a trained model to ONNX."""

from __future__ import annotations

import argparse
from pathlib import Path

from mnemorank.cli.arguments import add_json

HELP = "convert a trained model to a small ONNX model that runs without torch"
EXAMPLE = "mnemorank export models/mine models/mine-int8 --dev dev.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model folder written by `mnemorank train`")
    parser.add_argument("output", metavar="DIR", type=Path, help="the folder of the exported model")
    parser.add_argument(
        "--quantize",
        choices=("none", "int8", "int8-static", "int4"),
        default="int8",
        help="INT8 with dynamic ranges (default), INT8 with calibrated ranges, INT4 weights, or none (FP32)",
    )
    parser.add_argument(
        "--dev", metavar="FILE", type=Path, help="examples to compare the exported model with the original on"
    )
    parser.add_argument(
        "--calibration", metavar="FILE", type=Path, help="examples that calibrate the ranges (default: those of --dev)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.01, help="largest acceptable drop of NDCG@10 on --dev (default: 0.01)"
    )
    add_json(parser)


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
    print(f"\nwrote {exported.path}")
