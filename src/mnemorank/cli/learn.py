"""`mnemorank learn`: run the learning loop, step by step, as a whole or on a schedule."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemorank.cli.arguments import add_json, positive_int
from mnemorank.cli.output import print_json, table
from mnemorank.errors import MissingExtraError, MnemorankError, NotFoundError

if TYPE_CHECKING:
    from mnemorank.learning.loop import Loop
    from mnemorank.learning.runs import TrainingRun
    from mnemorank.learning.settings import LearningSettings
    from mnemorank.learning.store.deletion import Deletion

HELP = "learn from feedback: mine examples, train, evaluate, promote, roll back"
EXAMPLE = "mnemorank learn run --root .mnemorank"

ROOT_VARIABLE = "MNEMORANK_LEARNING"
STORE_VARIABLE = "MNEMORANK_STORE"
_CREATES_LOOP = ("mine", "train", "run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def add(
        name: str, function: Callable[[Loop, argparse.Namespace], int | None], help_text: str
    ) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=help_text, description=help_text)
        root = Path(os.environ.get(ROOT_VARIABLE, ".mnemorank"))
        action.add_argument(
            "--root", type=Path, default=root, metavar="DIR", help="folder of the loop (default: %(default)s)"
        )
        action.add_argument(
            "--store",
            default=os.environ.get(STORE_VARIABLE) or None,
            metavar="URL",
            help=f"event store, if the server uses another one (default: {STORE_VARIABLE}, else learning.toml)",
        )
        add_json(action)
        action.set_defaults(function=function, creates_loop=name in _CREATES_LOOP)
        return action

    add("status", _status, "show the state of the loop")
    mine = add("mine", _mine, "mine examples from the feedback")
    mine.add_argument("--golden", type=Path, metavar="FILE", help="known answers: lists, triplets or graded")
    mine.add_argument("--output", type=Path, metavar="FILE", help="also write the examples, with their provenance")
    train = add("train", _train, "train a candidate on the mined examples and evaluate it")
    train.add_argument("--detach", action="store_true", help="do not wait for the training to end")
    evaluate = add("evaluate", _evaluate, "compare a version with the current one")
    evaluate.add_argument("version")
    promote = add("promote", _promote, "put a version that passed the gate in service")
    promote.add_argument("version")
    promote.add_argument("--force", action="store_true", help="even if it did not pass the gate")
    rollback = add("rollback", _rollback, "put an earlier version back in service")
    rollback.add_argument("version", nargs="?", help="any version (default: the previous one)")
    for action in (promote, rollback):
        action.add_argument("--why", default="", help="reason, for the history")
    add("history", _history, "show who did what, and why")
    run = add("run", _run, "mine, train, evaluate, and promote if the gate allows it; once, or on a schedule")
    run.add_argument("--golden", type=Path, metavar="FILE", help="known answers: lists, triplets or graded")
    run.add_argument("--cron", metavar="EXPRESSION", help="run at these times, such as '0 3 * * *', until stopped")
    run.add_argument(
        "--after", type=positive_int, metavar="N", help="run whenever there are N new examples, until stopped"
    )
    for action in (train, run):
        action.add_argument("--base", metavar="DIR", help="torch folder to train from if the version has none")
    cancel = add("cancel", _cancel, "cancel a training run")
    log = add("log", _log, "show the output of a training run")
    for action in (cancel, log):
        action.add_argument("run_id", metavar="RUN")
    delete = add("delete", _delete, "delete an event, or all data of a memory, user or tenant")
    delete.add_argument("scope", choices=("event", "memory", "user", "tenant"))
    delete.add_argument("name")
    add("expire", _expire, "delete what is older than the retention period, as mining does")
    export = add("export", _export, "print all data of a user as JSON Lines")
    export.add_argument("user")
    for action in (delete, export):
        action.add_argument("--tenant", default="default")
    report = add("report", _report, "list memories that are never used, or queries without a useful result")
    report.add_argument("kind", choices=("unused", "no-hits"))
    report.add_argument(
        "--min-count",
        type=positive_int,
        default=10,
        metavar="N",
        help="shown or asked at least N times (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int | None:
    try:
        from mnemorank.learning.loop import Loop
    except ImportError as error:
        raise MissingExtraError(f"learn needs `pip install 'mnemorank[learn]'` ({error})") from error
    if not (arguments.creates_loop or arguments.store or arguments.root.is_dir()):
        raise NotFoundError(f"no learning loop at {arguments.root}; give --root or {ROOT_VARIABLE}", field="--root")
    with Loop(arguments.root, _settings(arguments), store_url=arguments.store) as loop:
        return arguments.function(loop, arguments)  # type: ignore[no-any-return]


def _settings(arguments: argparse.Namespace) -> LearningSettings:
    """The settings of the folder, with the overrides of the command line."""
    from mnemorank.learning.settings import load_settings

    settings = load_settings(arguments.root)
    base = getattr(arguments, "base", None)
    return settings if base is None else settings.with_training(base=base)


def _user_name() -> str:
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return ""


def _status(loop: Loop, arguments: argparse.Namespace) -> None:
    status = loop.status()
    if arguments.json:
        print_json(status)
        return
    examples, last_run = status["examples"], status["run"]
    rows = [
        ("current version", status["current"] or "none yet"),
        ("previous version", status["previous"] or "none"),
        ("versions", ", ".join(status["versions"]) or "none"),
        ("events", f"{status['events']} (and {status['test_events']} of test traffic)"),
        ("signals", status["signals"]),
        ("examples", f"{examples['train']} for training, {examples['held-out']} held out"),
        ("not yet trained on", status["untrained_examples"]),
        ("stores texts", "yes" if status["stores_texts"] else "no; mining needs privacy.texts = true"),
        ("last run", _describe_run(last_run) if last_run else "none"),
    ]
    if (shadow := status["shadow"]) is not None:
        rows.append(
            ("shadow candidate", f"{shadow['version']}: {shadow['scored']} events; {shadow['check']['reason']}")
        )
    rows += [
        (f"deleted since {version}", f"{count} of its training examples")
        for version, count in status["deletions_since_training"].items()
    ]
    print(table(rows, ("learning", str(loop.root))))


def _mine(loop: Loop, arguments: argparse.Namespace) -> None:
    from mnemorank.learning.store import examples

    mined = loop.mine(arguments.golden)
    stored = examples.load_examples(loop.store.database)
    if arguments.output:
        examples.write_with_provenance(stored, arguments.output)
    counts = {"examples": len(stored), **examples.count_examples(loop.store.database)}
    if arguments.json:
        print_json({**counts, "dropped": dict(mined.dropped)})
        return
    rows = [*counts.items(), *((f"dropped: {reason}", count) for reason, count in mined.dropped.items() if count)]
    print(table(rows, ("mined", "")))


def _train(loop: Loop, arguments: argparse.Namespace) -> int:
    run, process = loop.train(who=_user_name())
    if arguments.detach:
        print_json(run.summary()) if arguments.json else print(f"started {run.id}; see `mnemorank learn status`")
        return 0
    _wait(process)
    return _print_run(loop.runs.get(run.id), arguments.json)


def _evaluate(loop: Loop, arguments: argparse.Namespace) -> None:
    decision = loop.evaluate(arguments.version, who=_user_name())
    if arguments.json:
        print_json(decision.to_dict())
        return
    rows = [("pass" if check.passed else "FAIL", check.reason) for check in decision.checks]
    print(table(rows, ("gate", "passed" if decision.promote else "not passed")))


def _promote(loop: Loop, arguments: argparse.Namespace) -> None:
    version = loop.promote(arguments.version, who=_user_name(), why=arguments.why, force=arguments.force)
    print_json({"current": version.name}) if arguments.json else print(f"{version.name} is in service")


def _rollback(loop: Loop, arguments: argparse.Namespace) -> None:
    version = loop.versions.rollback(arguments.version, who=_user_name(), why=arguments.why)
    print_json({"current": version.name}) if arguments.json else print(f"{version.name} is in service")


def _history(loop: Loop, arguments: argparse.Namespace) -> None:
    entries = loop.versions.history.entries()
    if arguments.json:
        print_json(entries)
        return
    rows = [(_format_time(e["time"]), e["action"], e["version"], e.get("who", ""), e.get("why", "")) for e in entries]
    print(table(rows, ("time", "action", "version", "who", "why")))


def _run(loop: Loop, arguments: argparse.Namespace) -> int:
    if arguments.cron or arguments.after:
        from mnemorank.learning.schedule import Scheduler

        loop.recover()
        scheduler = Scheduler(
            lambda: loop.run(who="schedule", golden=arguments.golden),
            loop.count_new_examples,
            cron=arguments.cron,
            after_examples=arguments.after,
        )
        scheduler.run_forever()
    schedule = loop.settings.schedule
    if schedule.cron or schedule.after_examples:
        print("mnemorank: running once; the server keeps the schedule of learning.toml", file=sys.stderr)
    return _print_run(loop.run(who=_user_name(), golden=arguments.golden), arguments.json)


def _cancel(loop: Loop, arguments: argparse.Namespace) -> None:
    run = loop.runs.cancel(arguments.run_id)
    print_json(run.summary()) if arguments.json else print(f"{run.id} is canceled")


def _log(loop: Loop, arguments: argparse.Namespace) -> None:
    lines = loop.runs.log_lines(arguments.run_id)
    print_json(lines) if arguments.json else print("\n".join(lines))


def _delete(loop: Loop, arguments: argparse.Namespace) -> None:
    _print_deletion(loop.delete(arguments.scope, arguments.name, arguments.tenant), arguments.json)


def _expire(loop: Loop, arguments: argparse.Namespace) -> None:
    _print_deletion(loop.delete_expired(), arguments.json)


def _print_deletion(deletion: Deletion, as_json: bool) -> None:
    if as_json:
        names = ("events", "signals", "examples", "models")
        print_json({name: getattr(deletion, name) for name in names})
        return
    print(f"deleted {deletion.events} events, {deletion.signals} signals, {deletion.examples} examples")
    for name, count in deletion.models.items():
        model = f"run {name.removeprefix('run:')}" if name.startswith("run:") else f"version {name}"
        print(f"{model} was trained on {count} deleted examples")


def _export(loop: Loop, arguments: argparse.Namespace) -> None:
    from mnemorank.learning.store.deletion import export_user

    for record in export_user(loop.store, arguments.user, arguments.tenant):
        print(json.dumps(record, ensure_ascii=False))


def _report(loop: Loop, arguments: argparse.Namespace) -> None:
    from mnemorank.learning.reports import unanswered_queries, unused_memories

    entries: list[Any]
    rows: list[tuple[Any, ...]]
    if arguments.kind == "unused":
        memories = unused_memories(loop.store.events(), arguments.min_count)
        entries, header = [*memories], ("shown", "negative", "memory", "text")
        rows = [(m.shown, m.negative, m.memory_id or m.text_hash, m.text or "") for m in memories]
    else:
        queries = unanswered_queries(loop.store.events(), arguments.min_count)
        entries, header = [*queries], ("asked", "abstained", "unhelpful", "query")
        rows = [(q.asked, q.abstained, q.unhelpful, q.query) for q in queries]
    print_json([asdict(entry) for entry in entries]) if arguments.json else print(table(rows, header, right=(0, 1)))


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for a training process, which continues after Ctrl-C."""
    try:
        process.wait()
    except KeyboardInterrupt:
        raise MnemorankError(
            "the training continues; see `mnemorank learn status`, or stop it with `mnemorank learn cancel`"
        ) from None


def _print_run(run: TrainingRun, as_json: bool) -> int:
    if as_json:
        print_json(run.summary())
    else:
        print(_describe_run(run.summary()))
        for check in (run.decision or {}).get("checks", []):
            print(f"  {'pass' if check['passed'] else 'FAIL'}  {check['reason']}")
        if run.error:
            print(f"  {run.error}")
    return 0 if run.state == "done" else 1


def _describe_run(run: dict[str, Any]) -> str:
    outcome = run["state"] if run["state"] != "done" else ("promoted" if run["promoted"] else "done, not promoted")
    version = f" as version {run['version']}" if run["version"] else ""
    stage = f" ({run['stage']})" if run["stage"] else ""
    return f"{run['id']}: {outcome}{stage}, {run['examples']} examples{version}"


def _format_time(time: float) -> str:
    return datetime.fromtimestamp(time).isoformat(sep=" ", timespec="seconds")
