"""`mnemorank learn`: the learning loop, by hand or by schedule."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemorank.cli.output import print_json, table
from mnemorank.errors import InputError, MissingExtraError, MnemorankError

if TYPE_CHECKING:
    from mnemorank.learning.loop import Loop
    from mnemorank.learning.runs import Run
    from mnemorank.learning.store.deletion import Deletion

HELP = "learn from feedback: mine examples, train, evaluate, promote, roll back"
EXAMPLE = "mnemorank learn run --root .mnemorank"

ROOT_VARIABLE = "MNEMORANK_LEARNING"
STORE_VARIABLE = "MNEMORANK_STORE"
_BEGIN_A_LOOP = ("mine", "train", "run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, function: Any, help_text: str) -> argparse.ArgumentParser:
        sub = actions.add_parser(name, help=help_text, description=help_text)
        root = Path(os.environ.get(ROOT_VARIABLE, ".mnemorank"))
        sub.add_argument(
            "--root", type=Path, default=root, metavar="DIR", help="the loop's folder (default: %(default)s)"
        )
        sub.add_argument(
            "--store",
            default=os.environ.get(STORE_VARIABLE) or None,
            metavar="URL",
            help=f"the loop's store, where the server was given one (default: {STORE_VARIABLE}, else learning.toml's)",
        )
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(act=function, begins_a_loop=name in _BEGIN_A_LOOP)
        return sub

    action("status", _status, "where the loop stands")
    mine = action("mine", _mine, "make examples of the feedback")
    mine.add_argument(
        "--golden", type=Path, metavar="FILE", help="known answers to begin with: lists, triplets or graded"
    )
    mine.add_argument("--output", type=Path, metavar="FILE", help="also write the examples, with their provenance")
    train = action("train", _train, "train a candidate on the mined examples and ask the gate about it")
    train.add_argument("--base", metavar="DIR", help="torch folder to train from, where the current version has none")
    train.add_argument("--detach", action="store_true", help="do not wait for the training to end")
    evaluate = action("evaluate", _evaluate, "measure a version against the current one")
    evaluate.add_argument("version")
    promote = action("promote", _promote, "put a version in service that passed the gate")
    promote.add_argument("version")
    promote.add_argument("--force", action="store_true", help="whatever the gate said")
    rollback = action("rollback", _rollback, "put an earlier version back in service")
    rollback.add_argument("version", nargs="?", help="any version; the one before the current by default")
    for changing in (promote, rollback):
        changing.add_argument("--why", default="", help="for the history")
    action("history", _history, "who did what, and why")
    run = action("run", _run, "mine, train, evaluate, and promote if the gate lets it; once, or by the schedule")
    run.add_argument("--golden", type=Path, metavar="FILE", help="known answers to begin with")
    run.add_argument("--base", metavar="DIR", help="torch folder to train from, where the current version has none")
    run.add_argument("--cron", metavar="EXPRESSION", help="run at these times, such as '0 3 * * *', until stopped")
    run.add_argument("--after", type=int, metavar="N", help="run whenever there are N new examples, until stopped")
    cancel = action("cancel", _cancel, "stop a training")
    cancel.add_argument("run_id", metavar="RUN")
    log = action("log", _log, "what a training printed")
    log.add_argument("run_id", metavar="RUN")
    forget = action("forget", _forget, "delete an event, or all that is stored of a memory, user or tenant")
    forget.add_argument("scope", choices=("event", "memory", "user", "tenant"))
    forget.add_argument("name")
    action("expire", _expire, "delete what is older than the retention; mining does it too")
    export = action("export", _export, "all data of a user, as JSON Lines")
    export.add_argument("user")
    for scoped in (forget, export):
        scoped.add_argument("--tenant", default="default")
    report = action("report", _report, "memories shown often and never used, or queries that find nothing")
    report.add_argument("kind", choices=("unused", "no-hits"))
    report.add_argument("--least", type=int, default=10, metavar="N", help="shown or asked at least so often")


def run(arguments: argparse.Namespace) -> int | None:
    try:
        from mnemorank.learning.loop import Loop
    except ImportError as error:
        raise MissingExtraError(f"learn needs `pip install 'mnemorank[learn,eval]'` ({error})") from error
    if not (arguments.begins_a_loop or arguments.store or arguments.root.is_dir()):
        raise InputError(f"{arguments.root}: there is no learning loop here; give --root or {ROOT_VARIABLE}")
    with Loop(arguments.root, _settings(arguments), store_url=arguments.store) as loop:
        return arguments.act(loop, arguments)  # type: ignore[no-any-return]


def _settings(arguments: argparse.Namespace) -> Any:
    """The folder's settings with what the command line changes in them."""
    from dataclasses import replace

    from mnemorank.learning.settings import load_settings

    settings = load_settings(arguments.root)
    base = getattr(arguments, "base", None)
    return settings if base is None else replace(settings, training=replace(settings.training, base=base))


def _who() -> str:
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return ""


def _status(loop: Loop, arguments: argparse.Namespace) -> None:
    status = loop.status()
    if arguments.json:
        print_json(status)
        return
    examples, last = status["examples"], status["run"]
    rows = [
        ("current version", status["current"] or "none yet"),
        ("previous version", status["previous"] or "none"),
        ("versions", ", ".join(status["versions"]) or "none"),
        ("events", f"{status['events']} (and {status['test_events']} of test traffic)"),
        ("signals", status["signals"]),
        ("examples", f"{examples['train']} to train on, {examples['held-out']} held out"),
        ("not yet trained on", status["untrained_examples"]),
        ("texts stored", "yes" if status["stores_texts"] else "no: mining needs them, see docs/learning.md"),
        ("last training", _run_line(last) if last else "none"),
    ]
    if (shadow := status["shadow"]) is not None:
        rows.append(
            (f"{shadow['version']} in the shadow", f"{shadow['scored']} events scored; {shadow['check']['reason']}")
        )
    rows += [
        (f"deleted since {v} was trained", f"{n} of its examples")
        for v, n in status["deletions_since_training"].items()
    ]
    print(table(rows, ("learning", str(loop.root))))


def _mine(loop: Loop, arguments: argparse.Namespace) -> None:
    from mnemorank.learning.store import examples

    mined = loop.mine(arguments.golden)
    stored = examples.load(loop.store.database)
    if arguments.output:
        examples.write_with_provenance(stored, arguments.output)
    counts = {"examples": len(stored), **examples.counts(loop.store.database)}
    if arguments.json:
        print_json({**counts, "dropped": dict(mined.dropped)})
        return
    rows = [*counts.items(), *((f"left out: {reason}", count) for reason, count in mined.dropped.items() if count)]
    print(table(rows, ("mined", "")))


def _train(loop: Loop, arguments: argparse.Namespace) -> int:
    run, process = loop.train(who=_who())
    if arguments.detach:
        print_json(run.summary()) if arguments.json else print(f"run {run.id} has begun; see: mnemorank learn status")
        return 0
    _wait(process)
    return _told(loop.runs.get(run.id), arguments.json)


def _evaluate(loop: Loop, arguments: argparse.Namespace) -> None:
    decision = loop.evaluate(arguments.version, who=_who())
    if arguments.json:
        print_json(decision.to_dict())
        return
    rows = [("pass" if check.passed else "FAIL", check.reason) for check in decision.checks]
    print(table(rows, ("gate", "would be promoted" if decision.promote else "would not be promoted")))


def _promote(loop: Loop, arguments: argparse.Namespace) -> None:
    version = loop.promote(arguments.version, who=_who(), why=arguments.why, force=arguments.force)
    print_json({"current": version.name}) if arguments.json else print(f"{version.name} is in service")


def _rollback(loop: Loop, arguments: argparse.Namespace) -> None:
    version = loop.registry.rollback(arguments.version, who=_who(), why=arguments.why)
    print_json({"current": version.name}) if arguments.json else print(f"{version.name} is in service")


def _history(loop: Loop, arguments: argparse.Namespace) -> None:
    entries = loop.registry.history.entries()
    if arguments.json:
        print_json(entries)
        return
    rows = [(_when(e["time"]), e["action"], e["version"], e.get("who", ""), e.get("why", "")) for e in entries]
    print(table(rows, ("time", "action", "version", "who", "why")))


def _run(loop: Loop, arguments: argparse.Namespace) -> int:
    schedule = loop.settings.schedule
    cron, after = arguments.cron or schedule.cron, arguments.after or schedule.after_examples
    if arguments.cron is None and arguments.after is None and (cron or after):
        print("mnemorank: running once; the server keeps the schedule of learning.toml", file=sys.stderr)
    if arguments.cron or arguments.after:
        from mnemorank.learning.schedule import Cron, Scheduler

        loop.recover()
        scheduler = Scheduler(
            lambda: loop.run(who="schedule", golden=arguments.golden),
            loop.new_examples,
            cron=Cron.parse(arguments.cron) if arguments.cron else None,
            after_examples=arguments.after,
        )
        scheduler.run_forever()
    return _told(loop.run(who=_who(), golden=arguments.golden), arguments.json)


def _cancel(loop: Loop, arguments: argparse.Namespace) -> None:
    run = loop.runs.cancel(arguments.run_id)
    print_json(run.summary()) if arguments.json else print(f"{run.id} is cancelled")


def _log(loop: Loop, arguments: argparse.Namespace) -> None:
    lines = loop.runs.log(arguments.run_id)
    print_json(lines) if arguments.json else print("\n".join(lines))


def _forget(loop: Loop, arguments: argparse.Namespace) -> None:
    _tell_deletion(loop.forget(arguments.scope, arguments.name, arguments.tenant), arguments.json)


def _expire(loop: Loop, arguments: argparse.Namespace) -> None:
    _tell_deletion(loop.expire(), arguments.json)


def _tell_deletion(done: Deletion, as_json: bool) -> None:
    told = {"events": done.events, "signals": done.signals, "examples": done.examples, "models": done.models}
    if as_json:
        print_json(told)
        return
    print(f"deleted: {done.events} events, {done.signals} signals, {done.examples} examples")
    for version, count in done.models.items():
        print(f"version {version} was trained on {count} of them")


def _export(loop: Loop, arguments: argparse.Namespace) -> None:
    from mnemorank.learning.store.deletion import export_user

    for record in export_user(loop.store, arguments.user, arguments.tenant):
        print(json.dumps(record, ensure_ascii=False))


def _report(loop: Loop, arguments: argparse.Namespace) -> None:
    from dataclasses import asdict

    from mnemorank.learning.reports import no_hits, unused_memories

    if arguments.kind == "unused":
        found: list[Any] = list(unused_memories(loop.store.events(), arguments.least))
        header = ("shown", "disliked", "memory", "text")
        rows = [(entry.shown, entry.disliked, entry.memory_id or entry.text_hash, entry.text or "") for entry in found]
    else:
        found = list(no_hits(loop.store.events(), arguments.least))
        header = ("asked", "abstained", "unhelpful", "query")
        rows = [(entry.asked, entry.abstained, entry.unhelpful, entry.query) for entry in found]
    print_json([asdict(entry) for entry in found]) if arguments.json else print(table(rows, header, right=(0, 1)))


def _wait(process: Any) -> None:
    """Ctrl-C leaves the training to itself, as it would the server's."""
    try:
        process.wait()
    except KeyboardInterrupt:
        raise MnemorankError(
            "the training goes on; `mnemorank learn status` shows it, `learn cancel` stops it"
        ) from None


def _told(run: Run, as_json: bool) -> int:
    if as_json:
        print_json(run.summary())
    else:
        print(_run_line(run.summary()))
        for check in (run.decision or {}).get("checks", []):
            print(f"  {'pass' if check['passed'] else 'FAIL'}  {check['reason']}")
        if run.error:
            print(f"  {run.error}")
    return 0 if run.state == "done" else 1


def _run_line(run: dict[str, Any]) -> str:
    outcome = run["state"] if run["state"] != "done" else ("promoted" if run["promoted"] else "done, not promoted")
    version = f" as version {run['version']}" if run["version"] else ""
    stage = f" ({run['stage']})" if run["stage"] else ""
    return f"{run['id']}: {outcome}{stage}, {run['examples']} examples{version}"


def _when(time: float) -> str:
    return datetime.fromtimestamp(time).isoformat(sep=" ", timespec="seconds")
