"""The learning loop: mine feedback, train a candidate, let the gate decide, promote. Used by the CLI and the server."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mnemorank._internal.atomic import atomic_path
from mnemorank.artifact.resolve import resolve
from mnemorank.data.examples import Example
from mnemorank.errors import ConflictError, InputError
from mnemorank.learning.gate import PRIMARY, GateDecision, check_shadow, decide, load_guard_sets
from mnemorank.learning.measurement import measure_models
from mnemorank.learning.mining.golden import mine_golden
from mnemorank.learning.mining.labels import Lookup
from mnemorank.learning.mining.miner import HELD_OUT, TRAIN, MiningResult, mine
from mnemorank.learning.mining.propensity import Propensities, estimate_propensities
from mnemorank.learning.mining.votes import query_key
from mnemorank.learning.runs import CANCELED, FAILED, FEEDBACK, RunStore, TrainingRun
from mnemorank.learning.settings import LearningSettings, load_settings
from mnemorank.learning.shadow import ShadowResult, compare_shadow, count_scored_events
from mnemorank.learning.store import deletion, examples
from mnemorank.learning.store.database import StoreAddress
from mnemorank.learning.store.deletion import Deletion
from mnemorank.learning.store.events import EventStore
from mnemorank.learning.versions import SERVING_ACTIONS, Version, VersionStore, ignore_step

logger = logging.getLogger(__name__)
_MINING_ATTEMPTS = 5


class Loop:
    """The learning loop of a folder.

    :param root: folder of `learning.toml`, the event store, the model versions and the training runs.
    :param settings: those of `learning.toml` by default.
    :param store_url: overrides the store of the settings. Its address is recorded in the folder, so that later commands
        without it fail instead of using an empty store.
    :param on_step: called with the name of each step just before it is taken; tests kill the process there.
    """

    def __init__(
        self,
        root: Path,
        settings: LearningSettings | None = None,
        *,
        store_url: str | None = None,
        on_step: Callable[[str], None] = ignore_step,
    ) -> None:
        self.root = Path(root)
        self.settings = settings or load_settings(self.root)
        configured_store = self.settings.store or str(self.root / "events.db")
        self.store_url = store_url or configured_store
        self._on_step = on_step
        self._mined_feedback: tuple[object, ...] | None = None
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.versions = VersionStore(self.settings.versions or self.root / "versions", on_step=on_step)
            self.runs = RunStore(self.root / "runs")
        except OSError as error:
            raise InputError(
                f"could not create the folder: {error.strerror}", location=str(error.filename), code="not_writable"
            ) from None
        address = StoreAddress(self.root / "store.txt", configured_store)
        address.check(store_url)
        self.store = EventStore(
            self.store_url, self.settings.privacy, timeout_seconds=self.settings.store_timeout_seconds
        )
        if store_url is not None:
            address.write(store_url)

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.store.close()

    def current(self) -> Version:
        """Return the version in service. Without any version, the model of the settings becomes the first."""
        current = self.versions.current()
        if current is not None:
            return current
        existing = self.versions.all()
        if existing:  # a process was killed between adding the first version and promoting it
            return self.versions.promote(existing[0].name, who="mnemorank", why="first version")
        source = resolve(self.settings.training.model)
        torch = source / "torch" if (source / "torch").is_dir() else None
        if any(source.glob("*.safetensors")):
            torch = source
        first = self.versions.add(source, torch=torch, who="mnemorank", why="first version")
        return self.versions.promote(first.name, who="mnemorank", why="first version")

    def mine(self, golden: Path | None = None, lookup: Lookup | None = None) -> MiningResult:
        """Turn all feedback into examples, which replace the previous ones.

        :param golden: a file of known answers, which replaces the previous one.
        :param lookup: returns a memory by its id, for stores without texts.
        """
        self.delete_expired()
        settings = self.settings.mining
        for _ in range(_MINING_ATTEMPTS):
            last_deletion = examples.last_deletion_id(self.store.database)
            result = mine(self.store.events(), self.propensities(), settings, lookup)
            self._on_step("mine: store")
            if examples.replace_examples(self.store.database, result.examples, "feedback", last_deletion):
                break
        else:
            raise ConflictError(
                f"data was deleted during each of {_MINING_ATTEMPTS} attempts; try again later",
                field="mining",
                code="concurrent_deletion",
            )
        if golden is not None:
            examples.replace_examples(self.store.database, mine_golden(golden, settings.held_out), "golden")
        return result

    def propensities(self) -> Propensities:
        """Estimate how likely users were to examine each rank."""
        return estimate_propensities(self.store.events())

    def train(self, *, promote: bool = False, who: str = "") -> tuple[TrainingRun, subprocess.Popen[bytes]]:
        """Start training a candidate on the mined examples in a separate process.

        :param promote: promote the candidate if it passes the gate.
        """
        with self.runs.lock():
            active = self.recover()
            if active is not None and active.is_active:
                raise ConflictError(
                    f"{active.id} is in progress; wait for it or cancel it", field="run", code="run_in_progress"
                )
            return self._start_training(promote, who)

    def _start_training(self, promote: bool, who: str) -> tuple[TrainingRun, subprocess.Popen[bytes]]:
        count = examples.count_examples(self.store.database).get(TRAIN, 0)
        required = self.settings.training.min_examples
        if count < required:
            raise ConflictError(
                f"{count} training examples; needs {required}", field="examples", code="too_few_examples"
            )
        self._on_step("run: create")
        run = self.runs.create(
            who=who,
            promote=promote,
            base_version=self.current().name,
            examples=count,
            settings=self.settings.to_table(),
        )
        run = self.write_examples(run)
        self._on_step("run: start")
        return run, self._start_process(run)

    def write_examples(self, run: TrainingRun) -> TrainingRun:
        """Write the training examples of a run to its folder; return the run with their number."""
        self._on_step("run: load examples")
        loaded = examples.load_for_training(self.store.database, f"run:{run.id}", TRAIN)
        self._on_step("run: write examples")
        with atomic_path(self.runs.folder(run.id) / FEEDBACK) as path:
            examples.write_with_provenance(loaded, path)
        return self.runs.update(run.id, examples=len(loaded))

    def recover(self) -> TrainingRun | None:
        """Resume a run whose process was killed; one that was killed too often fails. Return the active run."""
        return self._recover()[0]

    def _recover(self) -> tuple[TrainingRun | None, subprocess.Popen[bytes] | None]:
        """The active run, and the process that resumes it, if it had none."""
        run = self.runs.active()
        if run is None or self.runs.has_worker(run.id):
            return run, None
        if self.runs.is_cancel_requested(run.id):  # the process that canceled it was killed before recording that
            return self.runs.finish(run.id, CANCELED), None
        if run.attempt >= self.settings.training.attempts:
            return self.runs.finish(run.id, FAILED, error=f"its process was killed {run.attempt} times"), None
        logger.info("resuming run %s", run.id)
        return run, self._start_process(run)

    def evaluate(self, name: str, who: str = "") -> GateDecision:
        """Compare a version with the current one, and record the gate's decision in the history."""
        candidate, current = self.versions.get(name), self.current()
        if candidate.name == current.name:
            raise ConflictError(f"{name} is the current version", field="version", code="current_version")
        baseline = self.versions.baseline()
        others = [baseline] if baseline is not None and baseline.name not in (current.name, name) else []
        old, new, *first = measure_models(
            [version.path for version in (current, candidate, *others)], self.evaluation_sets()
        )
        decision = decide(old, new, self.settings.gate, self._attempt(), *first)
        facts = {
            **decision.to_dict(),
            "compared_with": current.name,
            "current": old.summary(),
            "candidate": new.summary(),
        }
        if first:
            facts["baseline"] = {"version": others[0].name, **first[0].summary()}
        self._on_step("evaluate: record")
        self.versions.history.append(
            action="evaluate", version=name, who=who, why="; ".join(decision.reasons), facts=facts
        )
        return decision

    def evaluation_sets(self) -> dict[str, list[Example]]:
        """Return the held-out feedback and the guard sets."""
        held_out, train = (
            [entry.example for entry in examples.load_examples(self.store.database, split)]
            for split in (HELD_OUT, TRAIN)
        )
        # The groups of a golden file may place a query of the held-out feedback among the training examples.
        trained_queries = {query_key(example.query) for example in train}
        unseen = [example for example in held_out if query_key(example.query) not in trained_queries]
        guards = self.settings.guards
        return {PRIMARY: unseen, **load_guard_sets(guards.general, guards.dated)}

    def promote(self, name: str, *, who: str = "", why: str = "", force: bool = False) -> Version:
        """Put a version that passed the gate in service.

        :param force: promote it even if it did not pass the gate; recorded in the history.
        """
        self.versions.get(name)  # raises if it does not exist
        decision = self.last_decision(name)
        has_passed = decision is not None and decision["promote"]
        if not has_passed and not force:
            raise self._gate_error(name, decision)
        shadow = check_shadow(self.shadow_result(name), self.settings.gate) if self.settings.shadow else None
        if shadow is not None and not shadow.passed and not force:
            raise ConflictError(
                f"{name} has not passed shadow mode: {shadow.reason}; use force to promote it anyway",
                field="version",
                code="shadow_not_passed",
            )
        facts = {
            "gate": decision,
            "shadow": asdict(shadow) if shadow else None,
            "forced": not has_passed or (shadow is not None and not shadow.passed),
        }
        version = self.versions.promote(
            name,
            who=who,
            why=f"{why} (forced)".strip() if force else why,
            facts={key: value for key, value in facts.items() if value},
            expected_current=decision["compared_with"] if decision and not force else None,
        )
        self.prune(who)
        return version

    def _gate_error(self, name: str, decision: dict[str, Any] | None) -> ConflictError:
        if decision is None:
            message, code = f"has not been evaluated against {self.current().name}", "not_evaluated"
        else:
            message = "; ".join(check["reason"] for check in decision["checks"] if not check["passed"])
            message, code = f"did not pass the gate: {message}", "gate_not_passed"
        return ConflictError(f"{name} {message}; use force to promote it anyway", field="version", code=code)

    def prune(self, who: str = "") -> None:
        """Remove old versions beyond `keep`, except those that a run, the gate, shadow mode or a user may need."""
        run = self.runs.active()
        needed = (self.versions.baseline(), self.shadow_candidate(), *self.versions.all()[-1:])
        protected = {version.name for version in needed if version} | ({run.base_version} if run else set())
        try:
            self.versions.prune(self.settings.keep, who=who or "mnemorank", protect=protected)
        except OSError as error:
            logger.warning("could not remove old versions: %s", error)

    def last_decision(self, name: str) -> dict[str, Any] | None:
        """Return the gate's last decision on a version, if it was compared with the current one."""
        current = self.versions.current()
        evaluations = [e for e in self.versions.history.entries() if e["action"] == "evaluate" and e["version"] == name]
        if not evaluations or current is None or evaluations[-1]["facts"]["compared_with"] != current.name:
            return None
        decision: dict[str, Any] = evaluations[-1]["facts"]
        return decision

    def shadow_candidate(self) -> Version | None:
        """Return the newest version that passed the gate since the current one was put in service."""
        name = None
        for entry in self.versions.history.entries():
            if entry["action"] in SERVING_ACTIONS:
                name = None  # a version that was rolled back does not become the candidate again
            elif entry["action"] == "evaluate" and entry["facts"]["promote"]:
                name = entry["version"]
            elif entry["action"] == "evaluate" and entry["version"] == name:
                name = None
        return self.versions.find(name) if name else None

    def shadow_result(self, name: str) -> ShadowResult | None:
        """Return how a version does in shadow mode; None before there is feedback on an event that it scored."""
        if not count_scored_events(self.store, name):
            return None
        return compare_shadow(self.store, name, self.propensities())

    def promote_shadow_candidate(self, who: str = "") -> Version | None:
        """Promote the shadow candidate if live traffic confirms it."""
        candidate = self.shadow_candidate() if self.settings.shadow else None
        if candidate is None:
            return None
        check = check_shadow(self.shadow_result(candidate.name), self.settings.gate)
        return self.promote(candidate.name, who=who, why=check.reason) if check.passed else None

    def run(self, *, who: str = "", golden: Path | None = None) -> TrainingRun:
        """Mine, train, evaluate, and promote if the gate allows it; return the finished run.

        If there is a run whose process was killed, that one is resumed instead.
        """
        with self.runs.lock():
            run, process = self._recover()
        if run is None or process is None:
            run, process = self.start_run(who=who, golden=golden)
        process.wait()
        return self.runs.get(run.id)

    def start_run(self, *, who: str = "", golden: Path | None = None) -> tuple[TrainingRun, subprocess.Popen[bytes]]:
        """Start what `run` does. A confirmed shadow candidate is promoted first, so that training builds on it."""
        self.mine(golden)
        self.promote_shadow_candidate(who)
        return self.train(promote=True, who=who)

    def count_new_examples(self) -> int:
        """Mine if there is new feedback; return the number of examples that no model was trained on."""
        version = examples.feedback_version(self.store.database)
        if version != self._mined_feedback:
            self.mine()
            self._mined_feedback = version
        else:
            self.delete_expired()
        return self.count_untrained()

    def delete(self, scope: str, name: str, tenant: str) -> Deletion:
        """Delete an event, memory, user or tenant from the store, the mined examples and the files of runs."""
        deleted = deletion.delete_by_scope(self.store, scope, name, tenant)
        self.runs.remove_examples(set(deleted.example_ids))
        return deleted

    def delete_expired(self) -> Deletion:
        """Delete what is older than `privacy.retention_days`, and what deletions left in SQLite's write-ahead log."""
        deleted = deletion.delete_expired(self.store)
        self.store.database.checkpoint()
        self.runs.remove_examples(set(deleted.example_ids))
        return deleted

    def count_untrained(self) -> int:
        """Return the number of examples that no model was trained on; failed and canceled runs do not count."""
        unsuccessful = [run.id for run in self.runs.all() if run.state in (FAILED, CANCELED)]
        for run_id in unsuccessful:
            self.runs.clean(run_id)  # once the training record is dropped, no deletion would reach the files
        examples.drop_training_records(self.store.database, [f"run:{run_id}" for run_id in unsuccessful])
        return examples.count_untrained(self.store.database)

    def status(self) -> dict[str, Any]:
        """Return the state of the loop: versions, counts, the last run, the shadow candidate."""
        current, previous, run = self.versions.current(), self.versions.previous(), self.runs.active()
        last = run or next(iter(self.runs.all()[-1:]), None)
        return {
            "current": current.name if current else None,
            "previous": previous.name if previous else None,
            "versions": [version.name for version in self.versions.all()],
            **self.store.counts(),
            "examples": {TRAIN: 0, HELD_OUT: 0, **examples.count_examples(self.store.database)},
            "untrained_examples": self.count_untrained(),
            "stores_texts": self.settings.privacy.texts,
            "run": None if last is None else {**last.summary(), "progress": self.runs.progress(last.id)},
            "deletions_since_training": self._deletions_by_version(),
            "shadow": self._shadow_status(),
        }

    def _shadow_status(self) -> dict[str, Any] | None:
        candidate = self.shadow_candidate() if self.settings.shadow else None
        if candidate is None:
            return None
        result = self.shadow_result(candidate.name)
        return {
            "version": candidate.name,
            "scored": count_scored_events(self.store, candidate.name),
            "result": asdict(result) if result else None,
            "check": asdict(check_shadow(result, self.settings.gate)),
        }

    def _deletions_by_version(self) -> dict[str, int]:
        """Version → number of its training examples that have been deleted since."""
        version_by_run = {f"run:{version.facts.get('run')}": version.name for version in self.versions.all()}
        counts: dict[str, int] = {}
        for deleted in deletion.list_deletions(self.store):
            for model, count in deleted.models.items():
                # During training, a version is recorded under its run; afterwards under both.
                version = version_by_run.get(model, model)
                if version in deleted.models:
                    version = model
                if not version.startswith("run:"):
                    counts[version] = counts.get(version, 0) + count
        return counts

    def _attempt(self) -> int:
        """Number of the next evaluation since the last promotion, repeated evaluations of a version included.

        A rollback does not restart the count, because the held-out queries stay the same.
        """
        attempt = 1
        for entry in reversed(self.versions.history.entries()):
            if entry["action"] == "promote":
                break
            attempt += entry["action"] == "evaluate"
        return attempt

    def _start_process(self, run: TrainingRun) -> subprocess.Popen[bytes]:
        return self.runs.start(run, self.root, self.store_url, self.settings.training.threads)
