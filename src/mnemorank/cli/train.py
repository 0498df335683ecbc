"""`mnemorank train`: a recipe in, a model folder out."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mnemorank.cli.output import table
from mnemorank.errors import MissingExtraError

if TYPE_CHECKING:
    from mnemorank.training.evaluation import Results
    from mnemorank.training.progress import Progress

HELP = "train a model as a recipe says"
EXAMPLE = "mnemorank train hindsight --set model.base=/models/minilm --set train.epochs=3 --output models/mine"


_SECONDS_A_LINE = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a TOML file, or the name of a recipe that comes along")
    parser.add_argument(
        "--set",
        dest="changes",
        metavar="key=value",
        action="append",
        default=[],
        help="change the recipe, such as train.epochs=3 or data.0.path=mine.jsonl, or leave a key out: data.0.split=; "
        "may be repeated",
    )
    parser.add_argument("--output", metavar="DIR", type=Path, help="the model folder (default: models/NAME)")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was broken off")


def run(arguments: argparse.Namespace) -> int | None:
    from mnemorank.training.recipe_files import load_recipe

    recipe = load_recipe(arguments.recipe, arguments.changes)
    output = arguments.output or Path("models") / recipe.name
    shows_bar = sys.stderr.isatty()
    if shows_bar:
        _say_on_bar("loading torch")
    try:
        from mnemorank.training.quiet import quiet

        with quiet():
            from mnemorank.training.progress import InterruptedTrainingError
            from mnemorank.training.run import train
    except ImportError as error:
        _clear(shows_bar)
        raise MissingExtraError(f"training needs `pip install 'mnemorank[train]'` ({error})") from error
    try:
        report = _bar if shows_bar else _Lines()
        outcome = train(
            recipe, output, resume=arguments.resume, report=report, say=_say_on_bar if shows_bar else _say_line
        )
    except InterruptedTrainingError as error:
        _clear(shows_bar)
        print(f"mnemorank: {error}; go on with: {resume_command(arguments, output)}", file=sys.stderr)
        return 130
    finally:
        _clear(shows_bar)
    print(f"{recipe.name}: {output}")
    if outcome.results is not None:
        print(_table(outcome.results))
    return None


def resume_command(arguments: argparse.Namespace, output: Path) -> str:
    """The command line that goes on with this run."""
    changes = [part for change in arguments.changes for part in ("--set", change)]
    return shlex.join(["mnemorank", "train", arguments.recipe, *changes, "--output", str(output), "--resume"])


def _bar(progress: Progress) -> None:
    filled = round(24 * progress.step / progress.steps)
    dev = "" if progress.dev is None else f"  dev {progress.dev:.4f}"
    name = f"{progress.stage} {progress.number}/{progress.stages}" if progress.stages > 1 else progress.stage
    print(
        f"\r\033[K{name} {'━' * filled}{'╌' * (24 - filled)} {progress.step}/{progress.steps}  loss {progress.loss:.4f}"
        f"{dev}  {_duration(progress.seconds_left)} left{'  measuring' if progress.measures_next else ''}",
        end="",
        file=sys.stderr,
        flush=True,
    )


class _Lines:
    """Where nobody watches: a line a measurement, and one a minute for the log."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if not progress.is_measurement and time.monotonic() - self._told < _SECONDS_A_LINE:
            return
        self._told = time.monotonic()
        dev = f" dev {progress.dev:.4f}" if progress.is_measurement else ""
        print(
            f"{progress.stage} step {progress.step}/{progress.steps} loss {progress.loss:.4f}{dev}, "
            f"{_duration(progress.seconds_left)} left",
            file=sys.stderr,
            flush=True,
        )


def _say_on_bar(text: str) -> None:
    print(f"\r\033[K{text} …", end="", file=sys.stderr, flush=True)


def _say_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _clear(shows_bar: bool) -> None:
    if shows_bar:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _table(results: Results) -> str:
    from mnemorank.training.evaluation import SHOWN, format_interval

    rows = []
    for name in SHOWN:
        lexical, base, trained, gain = results.row(name)
        rows.append([name, *map(format_interval, (lexical, base, trained, gain.difference)), f"{gain.p:.3f}"])
    caution = f"{results.caution}\n" if results.caution else ""
    return f"{results.queries} dev questions\n{caution}" + table(rows, ["", "BM25", "base", "trained", "gain", "p"])
