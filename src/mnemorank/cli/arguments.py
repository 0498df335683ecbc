"""Arguments that several commands share, and types of arguments."""

from __future__ import annotations

import argparse


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default="mini",
        metavar="M",
        help="a bundled model, a model folder, a Hub id such as org/name, or a remote address such as "
        "tei:http://127.0.0.1:8080 (default: mini)",
    )


def add_states(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--states",
        required=required,
        metavar="DIR",
        help="folder of prepared memories, for split models; created if needed",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def positive_int(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


def named_number(text: str) -> tuple[str, float]:
    """Parse `NAME=NUMBER`."""
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER, got {text!r}") from None
