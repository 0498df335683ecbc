"""Arguments that several commands share."""

from __future__ import annotations

import argparse


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="mini", metavar="M", help="bundled model, model folder or hf:org/name (default: mini)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON to standard output and nothing else")


def positive_number(text: str) -> int:
    """A whole number from 1, for argparse."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return number
