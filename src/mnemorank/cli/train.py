"""`mnemorank train`: train a model from a recipe."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mnemorank.cli.output import table
from mnemorank.errors import MissingExtraError

if TYPE_CHECKING:
    from mnemorank.training.evaluation import DevResults
    from mnemorank.training.progress import Progress

HELP = "train a model from a recipe"
EXAMPLE = "mnemorank train hindsight --set model.base=/models/minilm --set train.epochs=3 --output models/mine"

_SECONDS_PER_LINE = 60
_INTERRUPTED = 130  # the exit code of a process ended by SIGINT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a TOML file, or the name of a bundled recipe")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="key=value",
        action="append",
        default=[],
        help="override a key of the recipe, such as train.epochs=3 or data.0.path=mine.jsonl, or remove it, as in "
        "data.0.split=; may be repeated",
    )
    parser.add_argument("--output", metavar="DIR", type=Path, help="the model folder (default: models/NAME)")
    parser.add_argument("--resume", action="store_true", help="resume an interrupted run")


def run(arguments: argparse.Namespace) -> int | None:
    display = _TerminalDisplay() if sys.stderr.isatty() else _LogDisplay()
    try:
        return _train(arguments, display)
    finally:
        display.close()


def resume_command(arguments: argparse.Namespace, output: Path) -> str:
    """Return the command line that resumes this run."""
    overrides = [part for override in arguments.overrides for part in ("--set", override)]
    return shlex.join(["mnemorank", "train", arguments.recipe, *overrides, "--output", str(output), "--resume"])


def _train(arguments: argparse.Namespace, display: _Display) -> int | None:
    try:
        from mnemorank.training.recipe import load_recipe

        recipe = load_recipe(arguments.recipe, arguments.overrides)
        if isinstance(display, _TerminalDisplay):
            display.show_message("loading torch")
        from mnemorank._internal.quiet import quiet_libraries

        with quiet_libraries():
            from mnemorank.training.progress import InterruptedTrainingError
            from mnemorank.training.run import train
    except ImportError as error:
        raise MissingExtraError(f"training needs `pip install 'mnemorank[train]'` ({error})") from error
    output = arguments.output or Path("models") / recipe.name
    try:
        result = train(
            recipe,
            output,
            resume=arguments.resume,
            on_progress=display.show_progress,
            on_message=display.show_message,
        )
    except InterruptedTrainingError as error:
        display.close()
        print(f"{error}; resume with: {resume_command(arguments, output)}", file=sys.stderr)
        return _INTERRUPTED
    display.close()
    print(f"{recipe.name}: {output}")
    if result.results is not None:
        print(results_table(result.results))
    return None


class _Display(Protocol):
    def show_message(self, text: str) -> None: ...

    def show_progress(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


class _TerminalDisplay:
    """A progress bar per stage, with messages above it."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._stage_number = 0

    def show_message(self, text: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        print(text, file=sys.stderr, flush=True)

    def show_progress(self, progress: Progress) -> None:
        if progress.stage_number != self._stage_number:
            self._start_stage(progress)
        dev = "" if progress.dev is None else f", dev {progress.dev:.4f}"
        state = "evaluating" if progress.evaluates_next else f"{_duration(progress.seconds_left)} left"
        self._bar.set_postfix_str(f"loss {progress.loss:.4f}{dev}, {state}", refresh=False)
        self._bar.n = progress.step
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _start_stage(self, progress: Progress) -> None:
        from tqdm import tqdm

        self.close()
        self._stage_number = progress.stage_number
        count = f" {progress.stage_number}/{progress.stage_count}" if progress.stage_count > 1 else ""
        # tqdm's own estimate does not know about evaluations.
        layout = "{desc} {bar} {n_fmt}/{total_fmt}{postfix}"
        self._bar = tqdm(
            total=progress.steps, desc=progress.stage + count, bar_format=layout, leave=False, file=sys.stderr
        )


class _LogDisplay:
    """A line for each evaluation, and one per minute in between, for logs."""

    def __init__(self) -> None:
        self._last_line = time.monotonic()

    def show_message(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def show_progress(self, progress: Progress) -> None:
        if not progress.is_evaluation and time.monotonic() - self._last_line < _SECONDS_PER_LINE:
            return
        self._last_line = time.monotonic()
        dev = f" dev {progress.dev:.4f}" if progress.is_evaluation else ""
        print(
            f"{progress.stage} step {progress.step}/{progress.steps} loss {progress.loss:.4f}{dev}, "
            f"{_duration(progress.seconds_left)} left",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        pass


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def results_table(results: DevResults) -> str:
    """Return the metrics of BM25, base and trained model as a table."""
    from mnemorank.training.evaluation import REPORTED_METRICS, format_interval

    rows = []
    for metric in REPORTED_METRICS:
        bm25, base, trained, gain = results.row(metric)
        rows.append([metric, *map(format_interval, (bm25, base, trained, gain.difference)), f"{gain.p:.3f}"])
    warning = f"{results.leak_warning}\n" if results.leak_warning else ""
    return f"{results.queries} dev queries\n{warning}" + table(rows, ["", "BM25", "base", "trained", "gain", "p"])
