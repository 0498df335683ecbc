"""Loop: feedback in, better model out, never a worse one. What the command line and the server both call."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mnemorank.artifact.resolve import resolve
from mnemorank.data.examples import Example
from mnemorank.errors import InputError
from mnemorank.learning.gate import PRIMARY, Decision, check_shadow, decide, guard_sets
from mnemorank.learning.measurement import measure_models
from mnemorank.learning.mining.evidence import Lookup, query_key
from mnemorank.learning.mining.golden import mine_golden
from mnemorank.learning.mining.miner import HELD_OUT, TRAIN, Mined, mine
from mnemorank.learning.mining.propensity import Propensities, estimate
from mnemorank.learning.runs import CANCELLED, FAILED, FEEDBACK, OPEN_STATES, Run, Runs
from mnemorank.learning.settings import Settings, load_settings, settings_to_table
from mnemorank.learning.shadow import ShadowResult, compare_shadow, count_scored
from mnemorank.learning.store import deletion, examples
from mnemorank.learning.store.events import EventStore, StoreNote
from mnemorank.learning.versions import SERVED, Registry, Version, no_step

logger = logging.getLogger(__name__)
_MININGS = 5


class Loop:
    """The learning loop of one folder.

    :param root: holds `learning.toml`, the event store, the registry and the runs.
    :param settings: those of `learning.toml` by default.
    :param store_url: instead of the settings' own. Its address is noted in the folder, so that nobody who leaves it out
        later takes an empty store for the loop's.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings | None = None,
        *,
        store_url: str | None = None,
        on_step: Callable[[str], None] = no_step,
    ) -> None:
        self.root = Path(root)
        self.settings = settings or load_settings(self.root)
        own = self.settings.store or str(self.root / "events.db")
        self.store_url = store_url or own
        self._step = on_step
        self._mined_mark: tuple[object, ...] | None = None
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.registry = Registry(self.settings.registry or self.root / "registry", on_step=on_step)
            self.runs = Runs(self.root / "runs")
        except OSError as error:
            raise InputError(f"{error.filename}: the loop needs a folder to write to: {error.strerror}") from None
        note = StoreNote(self.root / "store.txt", own)
        note.check(store_url)
        self.store = EventStore(self.store_url, self.settings.privacy)
        if store_url is not None:
            note.write(store_url)

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.store.close()

    def current(self) -> Version:
        """The version in service; an empty registry is given the settings' model as its first."""
        version = self.registry.current()
        if version is not None:
            return version
        added = self.registry.versions()
        if added:  # a process was stopped between adding the first version and putting it in service
            return self.registry.promote(added[0].name, who="mnemorank", why="first version")
        source = resolve(self.settings.training.model)
        torch = source / "torch" if (source / "torch").is_dir() else None
        has_weights = any(source.glob("*.safetensors"))
        first = self.registry.add(source, torch=source if has_weights else torch, who="mnemorank", why="first version")
        return self.registry.promote(first.name, who="mnemorank", why="first version")

    def mine(self, golden: Path | None = None, lookup: Lookup | None = None) -> Mined:
        """Make examples of all feedback; replaces those mined before.

        :param golden: a file of known answers, which replaces the one given before.
        :param lookup: gives a memory by its id where texts are not stored.
        """
        self.expire()
        rules = self.settings.mining
        for _ in range(_MININGS):
            seen = examples.last_deletion(self.store.database)
            mined = mine(self.store.events(), self.propensities(), rules, lookup)
            if examples.save(self.store.database, mined.examples, "feedback", seen):
                break
        else:
            raise InputError(
                f"something was deleted during each of {_MININGS} attempts; mine again later", field="mining"
            )
        if golden is not None:
            examples.save(self.store.database, mine_golden(golden, rules.held_out), "golden")
        return mined

    def propensities(self) -> Propensities:
        return estimate(self.store.events())

    def train(self, *, promote: bool = False, who: str = "") -> tuple[Run, subprocess.Popen[bytes]]:
        """Begin to train a candidate on the mined examples, in a process of its own.

        :param promote: put it in service if it passes the gate.
        """
        with self.runs.one_at_a_time():
            under_way = self.recover()
            if under_way is not None and under_way.state in OPEN_STATES:
                raise InputError(f"{under_way.id} is under way; wait for it or cancel it", field="run")
            return self._train(promote, who)

    def _train(self, promote: bool, who: str) -> tuple[Run, subprocess.Popen[bytes]]:
        found = examples.counts(self.store.database).get(TRAIN, 0)
        least = self.settings.training.least_examples
        if found < least:
            raise InputError(
                f"{found} to train on, at least {least} are needed; gather more feedback", field="examples"
            )
        parent = self.current()
        run = self.runs.create(
            who=who,
            promote=promote,
            base_version=parent.name,
            examples=found,
            settings=settings_to_table(self.settings),
        )
        given = examples.load_for_training(self.store.database, f"run:{run.id}", TRAIN)
        examples.write_with_provenance(given, self.runs.folder(run.id) / FEEDBACK)
        run = self.runs.update(run.id, examples=len(given))
        return run, self._start(run)

    def recover(self) -> Run | None:
        """Go on with a run whose process was killed; one that was killed too often is given up."""
        run = self.runs.open_run()
        if run is None or self.runs.is_alive(run.id):
            return run
        if self.runs.is_cancelled(run.id):  # whoever cancelled it was killed before it was recorded
            return self.runs.end(run.id, CANCELLED)
        if run.attempt >= self.settings.training.attempts:
            error = f"its process was killed {run.attempt} times"
            return self.runs.end(run.id, FAILED, error=error)
        logger.info("going on with the run %s", run.id)
        self._start(run)
        return run

    def evaluate(self, name: str, who: str = "") -> Decision:
        """Measure a version against the current one and ask the gate; the answer goes into the history."""
        candidate, current = self.registry.version(name), self.current()
        if candidate.name == current.name:
            raise InputError(f"{name} is the current one; there is nothing to compare it with", field="version")
        floor = self.registry.floor()
        others = [floor] if floor is not None and floor.name not in (current.name, name) else []
        old, new, *first = measure_models(
            [version.path for version in (current, candidate, *others)], self.evaluation_sets()
        )
        decision = decide(old, new, self.settings.gate, self._attempt(), *first)
        facts = {**decision.to_dict(), "against": current.name, "current": old.summary(), "candidate": new.summary()}
        if first:
            facts["floor"] = {"version": others[0].name, **first[0].summary()}
        self._step("evaluate: record")
        self.registry.history.append(
            action="evaluate", version=name, who=who, why="; ".join(decision.reasons), facts=facts
        )
        return decision

    def evaluation_sets(self) -> dict[str, list[Example]]:
        """The held-out feedback and the guard sets."""
        held_out, train = (
            [entry.example for entry in examples.load(self.store.database, split)] for split in (HELD_OUT, TRAIN)
        )
        # The groups of a file of known answers may put a question that feedback holds out among those trained on.
        seen = {query_key(example.query) for example in train}
        unseen = [example for example in held_out if query_key(example.query) not in seen]
        guards = self.settings.guards
        return {PRIMARY: unseen, **guard_sets(guards.general, guards.dated)}

    def promote(self, name: str, *, who: str = "", why: str = "", force: bool = False) -> Version:
        """Put a version in service that the gate let through.

        :param force: promote whatever the gate said; the history says so.
        """
        self.registry.version(name)  # what does not exist is told as such
        said = self.last_decision(name)
        if not force and not (said and said["promote"]):
            reasons = (
                "; ".join(check["reason"] for check in said["checks"] if not check["passed"])
                if said
                else f"not evaluated yet against {self.current().name}"
            )
            raise InputError(
                f"{name} did not pass the gate: {reasons}; --force promotes it all the same", field="version"
            )
        shadow = check_shadow(self.shadow_result(name), self.settings.gate) if self.settings.shadow else None
        if shadow is not None and not shadow.passed and not force:
            raise InputError(
                f"{name} is not proven yet: {shadow.reason}; --force promotes it all the same", field="version"
            )
        why = f"{why} (forced)".strip() if force else why
        forced = not (said and said["promote"]) or (shadow is not None and not shadow.passed)
        facts = {"gate": said, "shadow": asdict(shadow) if shadow else None, "forced": forced}
        told = {key: value for key, value in facts.items() if value}
        instead_of = said["against"] if said and not force else None
        version = self.registry.promote(name, who=who, why=why, facts=told, instead_of=instead_of)
        self.collect(who)
        return version

    def collect(self, who: str = "") -> None:
        """Remove versions beyond `keep`; none that a run, the shadow, the gate or whoever promotes by hand may need."""
        run = self.runs.open_run()
        needed = (self.registry.floor(), self.shadow_candidate(), *self.registry.versions()[-1:])
        spare = {version.name for version in needed if version} | ({run.base_version} if run else set())
        try:
            self.registry.collect(self.settings.keep, who=who or "mnemorank", spare=spare)
        except OSError as error:
            logger.warning("versions beyond keep = %d could not be removed: %s", self.settings.keep, error)

    def last_decision(self, name: str) -> dict[str, Any] | None:
        """The gate's last word on a version against the one that is current now."""
        current = self.registry.current()
        said = [e for e in self.registry.history.entries() if e["action"] == "evaluate" and e["version"] == name]
        if not said or current is None or said[-1]["facts"]["against"] != current.name:
            return None
        facts: dict[str, Any] = said[-1]["facts"]
        return facts

    def shadow_candidate(self) -> Version | None:
        """The newest version that passed the gate since the current one came into service."""
        passed = None
        for entry in self.registry.history.entries():
            if entry["action"] in SERVED:
                passed = None  # one that was rolled back is not tried again by itself
            elif entry["action"] == "evaluate" and entry["facts"]["promote"]:
                passed = entry["version"]
            elif entry["action"] == "evaluate" and entry["version"] == passed:
                passed = None
        return self.registry.find(passed) if passed else None

    def shadow_result(self, name: str) -> ShadowResult | None:
        """How a version does in the shadow; None before there is feedback on an event that it scored."""
        if not count_scored(self.store, name):
            return None
        return compare_shadow(self.store, name, self.propensities())

    def settle_shadow(self, who: str = "") -> Version | None:
        """Promote the candidate in the shadow if live traffic bears it out."""
        candidate = self.shadow_candidate() if self.settings.shadow else None
        if candidate is None:
            return None
        said = check_shadow(self.shadow_result(candidate.name), self.settings.gate)
        return self.promote(candidate.name, who=who, why=said.reason) if said.passed else None

    def run(self, *, who: str = "", golden: Path | None = None) -> Run:
        """Mine, train, evaluate and promote if the gate lets it; returns the finished run."""
        run, process = self.begin(who=who, golden=golden)
        process.wait()
        return self.runs.get(run.id)

    def begin(self, *, who: str = "", golden: Path | None = None) -> tuple[Run, subprocess.Popen[bytes]]:
        """Begin what `run` does. A candidate that has proven itself in the shadow is promoted first, to build on it."""
        self.mine(golden)
        self.settle_shadow(who)
        return self.train(promote=True, who=who)

    def new_examples(self) -> int:
        """How many examples there are that no model was trained on; mines first where there is new feedback."""
        mark = examples.feedback_mark(self.store.database)
        if mark != self._mined_mark:
            self.mine()
            self._mined_mark = mark
        else:
            self.expire()
        return self.untrained()

    def forget(self, scope: str, name: str, tenant: str) -> deletion.Deletion:
        """Delete by event, memory, user or tenant, everywhere: store, mined examples, files of runs."""
        done = deletion.delete_by_scope(self.store, scope, name, tenant)
        self.runs.forget(set(done.example_ids))
        return done

    def expire(self) -> deletion.Deletion:
        """Delete what is older than `privacy.retention_days`, and what an earlier deletion left in SQLite's log."""
        done = deletion.expire(self.store)
        self.store.database.forget_log()
        self.runs.forget(set(done.example_ids))
        return done

    def untrained(self) -> int:
        """How many examples no model was trained on; a run that failed or was cancelled trained none."""
        ended = [run.id for run in self.runs.all() if run.state in (FAILED, CANCELLED)]
        for run_id in ended:
            self.runs.clean(run_id)  # without the record of what is in its files no deletion would reach them
        examples.drop_trainings(self.store.database, [f"run:{run_id}" for run_id in ended])
        return examples.untrained(self.store.database)

    def status(self) -> dict[str, Any]:
        """Where the loop stands."""
        from mnemorank.learning.loop import status_of

        return status_of(self)

    def _attempt(self) -> int:
        """Which candidate this is since the last promotion; asking again about one counts too.

        A rollback does not begin a new count: the held-out queries are the same.
        """
        tried = 1
        for entry in reversed(self.registry.history.entries()):
            if entry["action"] == "promote":
                break
            tried += entry["action"] == "evaluate"
        return tried

    def _start(self, run: Run) -> subprocess.Popen[bytes]:
        return self.runs.start(run, self.root, self.store_url, self.settings.training.threads)


def status_of(loop: Loop) -> dict[str, Any]:
    current, previous, run = loop.registry.current(), loop.registry.previous(), loop.runs.open_run()
    last = run or next(iter(loop.runs.all()[-1:]), None)
    return {
        "current": current.name if current else None,
        "previous": previous.name if previous else None,
        "versions": [version.name for version in loop.registry.versions()],
        **loop.store.counts(),
        "examples": {TRAIN: 0, HELD_OUT: 0, **examples.counts(loop.store.database)},
        "untrained_examples": loop.untrained(),
        "stores_texts": loop.settings.privacy.texts,
        "run": None if last is None else {**last.summary(), "progress": loop.runs.progress(last.id)},
        "deletions_since_training": _deletions_by_version(loop),
        "shadow": _shadow_status(loop),
    }


def _shadow_status(loop: Loop) -> dict[str, Any] | None:
    candidate = loop.shadow_candidate() if loop.settings.shadow else None
    if candidate is None:
        return None
    found = loop.shadow_result(candidate.name)
    told = {"version": candidate.name, "scored": count_scored(loop.store, candidate.name)}
    return {
        **told,
        "result": asdict(found) if found else None,
        "check": asdict(check_shadow(found, loop.settings.gate)),
    }


def _deletions_by_version(loop: Loop) -> dict[str, int]:
    """Version → how many of the examples it was trained on have been deleted since."""
    made_by = {f"run:{version.facts.get('run')}": version.name for version in loop.registry.versions()}
    total: dict[str, int] = {}
    for done in deletion.deletions(loop.store):
        for model, count in done.models.items():
            # While it trained, a version was known by its run. Once it is made, it is known by both.
            version = made_by.get(model, model) if made_by.get(model) not in done.models else model
            if not version.startswith("run:"):
                total[version] = total.get(version, 0) + count
    return total
