"""The command line. Each command is a module of this package; what it needs is imported when it runs."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from mnemorank._version import __version__
from mnemorank.errors import ArtifactError, InputError, MissingExtraError, MnemorankError

COMMANDS = (
    "demo",
    "rerank",
    "score",
    "prepare",
    "index",
    "bulk",
    "models",
    "bench",
    "audit",
    "serve",
    "mcp",
    "train",
    "export",
    "learn",
)

# They log notices about their own internals on import.
_NOISY_LOGGERS = ("torchao", "torch.utils._pytree")


class Command(Protocol):
    """The module of a command.

    :param HELP: one line for the list of commands.
    :param EXAMPLE: a command line that works, shown by `--help`.
    """

    HELP: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int | None:
        """Run the command and return its exit code; None for 0."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 1 for a failure, 2 for bad usage or input."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # terminals that cannot show a bar character show a question mark
    argv = sys.argv[1:] if argv is None else argv
    arguments = build_parser([name for name in COMMANDS if name in argv]).parse_args(argv)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        return arguments.run(arguments) or 0
    except (InputError, ArtifactError, MissingExtraError) as error:
        return _fail(error, 2)
    except MnemorankError as error:
        return _fail(error, 1)
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has enough. Keep Python from failing to flush stdout at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def build_parser(commands: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    :param commands: those to add the arguments of, which imports what describes them; the others are only listed.
    """
    parser = _Parser(
        prog="mnemorank",
        description="The reranker for agent memory.",
        epilog="Example: mnemorank rerank 'where does Ruby work now?' memories.jsonl --top-k 5",
    )
    parser.add_argument("--version", action="version", version=f"mnemorank {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = cast(Command, import_module(f"mnemorank.cli.{name}"))
        subparser = subparsers.add_parser(
            name,
            help=command.HELP,
            description=command.HELP,
            epilog=f"Example:\n  {command.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in commands:
            command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def _fail(error: object, code: int) -> int:
    print("error: " + " ".join(str(error).split()), file=sys.stderr)
    return code
