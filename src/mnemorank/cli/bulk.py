"""`mnemorank bulk`: run a task over files of any size, with checkpoints, on one machine or on a Ray cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mnemorank.cli.arguments import add_json, add_model, positive_int

if TYPE_CHECKING:
    from mnemorank.bulk import BulkResult

HELP = "score, prepare, mine, label or evaluate files of any size, with checkpoints"
EXAMPLE = "mnemorank bulk score questions.jsonl --output scores"

_SHOWN_FAILURES = 5
_ROWS = """
INPUT is a file, a folder or a quoted pattern: .jsonl, .ndjson or .parquet, also .jsonl.gz and .jsonl.zst, local or a
URL of fsspec such as s3://bucket/questions. DIR gets one Parquet file per block of rows. If the job is interrupted, run
the same command again: it continues after the last finished block. Rows that fail are listed in DIR/_failures.jsonl;
the exit status is 1 if all rows failed, or more than --max-failures.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(title="tasks", metavar="TASK", required=True)

    def add(name: str, read: Callable[[argparse.Namespace], dict[str, Any]], text: str, example: str) -> Any:
        task = tasks.add_parser(
            name,
            help=text,
            description=text + "\n" + _ROWS,
            epilog=f"Example:\n  mnemorank bulk {name} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        task.set_defaults(task=name, read_options=read)
        task.add_argument("inputs", nargs="+", metavar="INPUT", help="files, folders, patterns or URLs")
        task.add_argument("--output", required=True, metavar="DIR", help="folder or URL of the results")
        return task

    score = add(
        "score",
        lambda a: {"model": a.model, "field": a.field, "instruction": a.instruction},
        "the relevance of memories: rows with `query` and `candidates` (or `memories`), or with `query` and a memory",
        "questions.jsonl --output scores",
    )
    score.add_argument("--instruction", metavar="TEXT", help="the instruction, for models that take one")
    prepare = add(
        "prepare",
        lambda a: {"model": a.model, "field": a.field},
        "states and embeddings of memories, for split models; `mnemorank prepare DIR --states …` loads them",
        "memories.jsonl --output states --model M",
    )
    for task in (score, prepare):
        task.add_argument("--field", metavar="NAME", help="field of the text (default: text, content, memory, …)")
    mine = add(
        "mine",
        _mine_options,
        "examples with hard negatives from a corpus; rows with `query` and labeled `candidates`",
        "train.jsonl --output mined --corpus memories.jsonl",
    )
    mine.add_argument(
        "--corpus",
        action="append",
        metavar="INPUT",
        help="memories to draw from, held in memory by every worker; may be repeated (default: those of all rows)",
    )
    mine.add_argument("--count", type=positive_int, default=4, metavar="N", help="negatives per row (default: 4)")
    mine.add_argument("--retriever", default="bm25", metavar="R", help="bm25 (default), or the folder of a bi-encoder")
    mine.add_argument(
        "--groups",
        choices=("any", "own", "other"),
        default="any",
        help="draw from memories of any group (default), of the row's own, or of other groups only",
    )
    mine.add_argument("--seed", type=int, default=0, metavar="N", help="of random choices (default: 0)")
    label = add(
        "label",
        _label_options,
        "examples with grades of a language model as labels; rows with `query` and `candidates`",
        "mined --output labeled --url http://127.0.0.1:8080/v1 --teacher qwen3",
    )
    label.add_argument("--url", required=True, metavar="URL", help="base URL of an OpenAI-compatible API, up to /v1")
    label.add_argument("--teacher", required=True, metavar="NAME", help="the API's name of the language model")
    label.add_argument("--key-variable", metavar="NAME", help="environment variable with the API key")
    label.add_argument(
        "--ranks", nargs=2, type=positive_int, default=(1, 30), metavar=("A", "B"), help="grade these first-stage ranks"
    )
    label.add_argument(
        "--concurrency", type=positive_int, default=4, metavar="N", help="requests at once per worker (default: 4)"
    )
    evaluate = add(
        "evaluate",
        lambda a: {"model": a.model, "model_only": a.model_only},
        "ranking and metrics of each example, and their means; rows with `query` and labeled `candidates`",
        "test.jsonl --output evaluation",
    )
    evaluate.add_argument("--model-only", action="store_true", help="rank by the model alone, without the pipeline")
    for task in (score, prepare, evaluate):
        add_model(task)
    for task in (score, prepare, mine, label, evaluate):
        task.add_argument(
            "--engine", choices=("local", "ray"), default="local", help="this process (default), or a Ray cluster"
        )
        task.add_argument("--address", metavar="A", help="of the Ray cluster (default: RAY_ADDRESS, or this machine)")
        task.add_argument(
            "--workers", type=positive_int, metavar="N", help="actors on Ray, one core each (default: all cores)"
        )
        task.add_argument(
            "--threads", type=positive_int, metavar="N", help="threads of each model (default: all cores; on Ray 1)"
        )
        task.add_argument(
            "--block-rows", type=positive_int, default=500, metavar="N", help="rows per checkpoint (default: 500)"
        )
        task.add_argument(
            "--max-failures", type=_count, metavar="N", help="stop when more rows than this failed (default: no limit)"
        )
        task.add_argument("--retry-failures", action="store_true", help="run blocks again that have failed rows")
        add_json(task)


def run(arguments: argparse.Namespace) -> int:
    from mnemorank.bulk import BulkJob, run_bulk

    options = {name: value for name, value in arguments.read_options(arguments).items() if value is not None}
    job = BulkJob(arguments.task, tuple(arguments.inputs), arguments.output, options, arguments.block_rows)
    with _progress(arguments.task) as on_progress:
        result = run_bulk(
            job,
            engine=arguments.engine,
            workers=arguments.workers,
            threads=arguments.threads,
            address=arguments.address,
            max_failures=arguments.max_failures,
            retry_failures=arguments.retry_failures,
            on_progress=on_progress,
        )
    _print(result, arguments)
    return 1 if result.failures and not result.rows else 0


def _print(result: BulkResult, arguments: argparse.Namespace) -> None:
    from mnemorank.bulk.job import FAILURES_FILE
    from mnemorank.cli.output import RED, paint, print_json

    if arguments.json:
        print_json({**asdict(result), "output": arguments.output})
        return
    speed = f", {result.processed / result.seconds:.1f} rows/s" if result.processed and result.seconds else ""
    continued = f"; {result.continued} of {result.blocks} blocks were done before" if result.continued else ""
    print(f"{result.rows} rows in {arguments.output}{speed}{continued}")
    for name, value in result.summary.items():
        print(f"{name:<24} {value:.4f}" if isinstance(value, float) else f"{name:<24} {value}")
    if result.failures:
        listed = f"{arguments.output.rstrip('/')}/{FAILURES_FILE}"
        print(
            paint(f"{len(result.failures)} rows failed; they are listed in {listed}", RED, stream=sys.stderr),
            file=sys.stderr,
        )
        for failure in result.failures[:_SHOWN_FAILURES]:
            print(f"  {failure}", file=sys.stderr)
        if len(result.failures) > _SHOWN_FAILURES:
            print("  …", file=sys.stderr)


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int, int, int], None] | None]:
    """Show finished blocks, rows and failures, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield None
        return
    with tqdm(desc=label, unit="block", leave=False, dynamic_ncols=True) as bar:
        earlier: int | None = None

        def update(done: int, total: int, rows: int, failed: int) -> None:
            nonlocal earlier
            earlier = rows + failed if earlier is None else earlier
            bar.initial = bar.initial or done
            elapsed = bar.format_dict["elapsed"]
            speed = f"{(rows + failed - earlier) / elapsed:.1f}" if elapsed else "–"
            bar.total = total
            bar.set_postfix_str(f"{rows} rows, {failed} failed, {speed} rows/s", refresh=False)
            bar.update(done - bar.n)
            bar.refresh()  # also the first report, which comes long before the first block

        yield update


def _mine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    mining = {"count": arguments.count, "retriever": arguments.retriever, "groups": arguments.groups}
    return {"corpus": arguments.corpus, "mining": mining, "seed": arguments.seed}


def _label_options(arguments: argparse.Namespace) -> dict[str, Any]:
    teacher = {
        "url": arguments.url,
        "model": arguments.teacher,
        "key_variable": arguments.key_variable,
        "concurrency": arguments.concurrency,
    }
    return {"teacher": teacher, "ranks": list(arguments.ranks)}


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)
