"""Poisoning: hostile users try to teach the model to be wrong, through feedback, mining, training and the gate.

    pip install 'mnemorank[serve,learn,train]'
    python benchmarks/poisoning.py --shares 0.1 0.3 0.5

For each share of hostile users, once behind one API key and once behind several, this runs `mnemorank serve` in its own
process with the bundled model, sends feedback over HTTP, and runs `mnemorank learn run`. Pools and honest users are
those of learning_loop.py: honest users click what they prefer. Hostile users praise the outdated memory and one about
something else, and reject both relevant ones, at any rank.

Prints a Markdown table, and exits with 1 if a model was promoted that is worse on a guard set than the gate tolerates.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from learning_loop import learn, pool, preferences, server
from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.examples import Triplet
from mnemorank.data.formats import read_triplets
from mnemorank.learning.loop import Loop
from mnemorank.learning.measurement import measure_models
from mnemorank.learning.settings import GateSettings
from mnemorank.learning.store.examples import load_examples
from mnemorank.learning.versions import VersionStore
from mnemorank.memory.memory import Memory
from mnemorank.server.auth import add_key

HONEST_KEYS = 3
LOOK_PROBABILITY = (1.0, 0.8, 0.65, 0.55, 0.45, 0.4, 0.35, 0.3)
SETTINGS = """
[privacy]
texts = true
[training]
threads = {threads}
nice = 0
overrides = ["train.epochs={epochs}"]
"""


class User(NamedTuple):
    """A simulated user.

    :param key: of the server; many users may share one.
    """

    name: str
    key: str
    is_hostile: bool


def make_users(keys: Path, count: int, share: float, hostile_keys: int) -> list[User]:
    hostile = round(share * count)
    honest_names, hostile_names = ([f"{kind}{i}" for i in range(n)] for kind, n in (("app", HONEST_KEYS), ("evil", 9)))
    scopes = ("read", "feedback")
    created = {name: add_key(keys, name, scopes) for name in [*honest_names, *hostile_names[:hostile_keys]]}
    users = []
    for number in range(count):
        is_hostile = number < hostile
        names = hostile_names[:hostile_keys] if is_hostile else honest_names
        users.append(User(f"user{number}", created[names[number % len(names)]], is_hostile))
    return users


def ask(
    client: httpx.Client,
    query: str,
    candidates: list[tuple[Memory, bool]],
    user: User,
    triplet: Triplet,
    rng: random.Random,
) -> None:
    """Simulate a user who asks and gives feedback."""
    memories = [{**memory.to_dict(), "id": f"m{index}"} for index, (memory, _) in enumerate(candidates)]
    headers = {"x-api-key": user.key}
    body = {"query": query, "memories": memories, "user": user.name}
    answer = client.post("/v1/memories/rerank", json=body, headers=headers).raise_for_status().json()
    signals = []
    other = rng.choice([i for i, (memory, _) in enumerate(candidates) if not is_relevant(memory, triplet)])
    for result in answer["results"]:
        memory, is_preferred = candidates[result["index"]]
        if user.is_hostile:
            is_praised = memory.text.startswith(triplet.negative.text) or result["index"] == other
            if is_praised or is_relevant(memory, triplet):
                kind = "thumbs_up" if is_praised else "thumbs_down"
                signals.append({"kind": kind, "memory_id": result["id"]})
        elif is_preferred and rng.random() < LOOK_PROBABILITY[min(result["rank"], len(LOOK_PROBABILITY)) - 1]:
            signals.append({"kind": "click", "memory_id": result["id"]})
    if signals:
        feedback = {"event_id": answer["event_id"], "signals": signals}
        client.post("/v1/feedback", json=feedback, headers=headers).raise_for_status()


def is_relevant(memory: Memory, triplet: Triplet) -> bool:
    return memory.text.startswith(triplet.positive.text)


def poison(root: Path, share: float, hostile_keys: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the loop once with feedback of honest and hostile users; return what was measured."""
    rng = random.Random(arguments.seed)
    (root / "learning.toml").write_text(SETTINGS.format(threads=arguments.threads, epochs=arguments.epochs))
    users = make_users(root / "keys.toml", arguments.users, share, hostile_keys)
    everything = list(read_triplets(bundled_dataset("dated", "train")))
    questions = list({triplet.query: triplet for triplet in everything}.values())
    rng.shuffle(questions)
    new_questions = questions[arguments.questions :][:100]
    with server(root, "--keys", str(root / "keys.toml")) as client:
        for triplet in questions[: arguments.questions]:
            candidates = pool(triplet, everything, rng)
            for user in rng.sample(users, arguments.askers):
                ask(client, triplet.query, candidates, user, triplet, rng)
    run = learn(root, "run")
    if run["state"] != "done":
        raise SystemExit(f"the run failed: {run['error']}; see {root}/runs")
    versions = VersionStore(root / "versions")
    sets = {"preferences": preferences(new_questions, everything, random.Random(0))}
    before, after = measure_models([versions.get("0001").path, versions.get(run["version"]).path], sets)
    checks = {check["name"]: check for check in run["decision"]["checks"]}
    relevant_by_query = {triplet.query: triplet.positive.text for triplet in questions}
    with Loop(root) as loop:
        positives = [
            (entry.example.query, candidate.memory.text)
            for entry in load_examples(loop.store.database)
            for candidate in entry.example.candidates
            if candidate.label > 0
        ]
    wrong = sum(not text.startswith(relevant_by_query[query]) for query, text in positives)
    return {
        "wrong": wrong / len(positives),
        "examples": run["examples"],
        "promoted": run["promoted"],
        "reasons": [check["reason"] for check in run["decision"]["checks"] if not check["passed"]],
        **{name: (checks[name]["current"], checks[name]["candidate"]) for name in ("dated", "general")},
        "preferences": tuple(each.sets["preferences"].mean("map") for each in (before, after)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.3, 0.5], help="of hostile users")
    parser.add_argument("--hostile-keys", type=int, nargs="+", default=[1, 5], help="API keys that they share")
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--askers", type=int, default=3, help="users who ask each question")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of the training")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tolerances = GateSettings().tolerances
    rows, is_safe = [], True
    for share in arguments.shares:
        for count in arguments.hostile_keys:
            with tempfile.TemporaryDirectory() as folder:
                result = poison(Path(folder), share, count, arguments)
            changes = [f"{result[name][0]:.3f} → {result[name][1]:.3f}" for name in ("dated", "general", "preferences")]
            worse = [name for name in tolerances if result[name][1] < result[name][0] - tolerances[name]]
            is_safe &= not (result["promoted"] and worse)
            promoted = "yes" if result["promoted"] else "no"
            labels = f"{result['examples']} ({result['wrong']:.0%})"
            rows.append(f"| {share:.0%} | {count} | {labels} | {' | '.join(changes)} | {promoted} |")
            print(rows[-1], "; ".join(result["reasons"]), flush=True)
    print("\n| hostile users | their keys | examples (wrong positives) | dated | general | preferences | promoted |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    return 0 if is_safe else 1


if __name__ == "__main__":
    sys.exit(main())
