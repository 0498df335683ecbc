"""Run the learning loop end to end: serve, feedback, mine, train, evaluate, promote, roll back.

    pip install 'mnemorank[serve,learn,train]'
    python benchmarks/learning_loop.py --root /tmp/loop

Everything runs as it would for a user: `mnemorank serve` in its own process, feedback over HTTP, and `mnemorank learn`
commands, which are printed. Training starts from the INT8 model that is served.

The memories come from the bundled `dated` set. Every pool has the relevant memory twice, as first-hand knowledge and as
hearsay, the superseded memory, and five memories about other subjects. The simulated users prefer first-hand knowledge,
which the model cannot know at first; they read from the top, often stop early, and sometimes click a wrong memory. The
figures are MAP and hit@1 on held-out feedback, on the guard sets, and by the users' true preferences on new questions.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from mnemorank.artifact.resolve import load_artifact
from mnemorank.data.bundled import bundled_dataset
from mnemorank.data.examples import Candidate, Example, Triplet
from mnemorank.data.formats import read_triplets
from mnemorank.learning.measurement import measure_models
from mnemorank.learning.versions import VersionStore
from mnemorank.memory.memory import Memory

FIRST_HAND = ("I saw it myself.", "She told me so in person.", "We agreed on it together.", "I was there.")
HEARSAY = (
    "At least that is the rumor.",
    "Somebody mentioned it in passing.",
    "So the neighbors say.",
    "I only heard of it.",
)
LOOK_PROBABILITY = (1.0, 0.8, 0.65, 0.55, 0.45, 0.4, 0.35, 0.3)
OTHERS = 5
SETTINGS = """
explore = 0.1
explore_seed = 1
[privacy]
texts = true
[training]
threads = {threads}
replay_weight = {replay_weight}
overrides = ["train.epochs={epochs}"]
"""


def pool(triplet: Triplet, triplets: list[Triplet], rng: random.Random) -> list[tuple[Memory, bool]]:
    """Return the candidates for a question, and whether the users prefer each of them."""
    relevant = triplet.positive
    candidates = [(with_note(relevant, FIRST_HAND, rng), True), (with_note(relevant, HEARSAY, rng), False)]
    others = rng.sample([other.positive for other in triplets if other.group != triplet.group], OTHERS)
    for memory in (triplet.negative, *others):
        candidates.append((with_note(memory, rng.choice((FIRST_HAND, HEARSAY)), rng), False))
    rng.shuffle(candidates)
    return candidates


def with_note(memory: Memory, notes: tuple[str, ...], rng: random.Random) -> Memory:
    return replace(memory, text=f"{memory.text} {rng.choice(notes)}")


def session(
    client: httpx.Client, query: str, candidates: list[tuple[Memory, bool]], user: str, rng: random.Random
) -> bool:
    """Simulate a user who asks, reads from the top and clicks; return whether there was a click."""
    memories = [{**memory.to_dict(), "id": f"m{index}"} for index, (memory, _) in enumerate(candidates)]
    body = {"query": query, "memories": memories, "user": user}
    answer = client.post("/v1/memories/rerank", json=body).raise_for_status().json()
    clicks = []
    for result in answer["results"]:
        is_seen = rng.random() < LOOK_PROBABILITY[min(result["rank"], len(LOOK_PROBABILITY)) - 1]
        if is_seen and (candidates[result["index"]][1] or rng.random() < 0.03):
            clicks.append({"kind": "click", "memory_id": result["id"]})
    if clicks:
        client.post("/v1/feedback", json={"event_id": answer["event_id"], "signals": clicks}).raise_for_status()
    return bool(clicks)


@contextmanager
def server(root: Path, *arguments: str) -> Iterator[httpx.Client]:
    command = ["serve", "--port", "0", "--learning", str(root), *arguments]
    print("$ mnemorank", *command, flush=True)
    with (root / "server.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "mnemorank", *command], stdout=log, stderr=log)
    try:
        address = None
        while address is None:
            if process.poll() is not None:
                raise SystemExit((root / "server.log").read_text())
            time.sleep(0.2)
            address = re.search(r"http://127\.0\.0\.1:\d+", (root / "server.log").read_text())
        with httpx.Client(base_url=address[0], timeout=60) as client:
            while not _is_ready(client):
                time.sleep(0.2)
            yield client
    finally:
        process.terminate()
        process.wait(60)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").is_success
    except httpx.HTTPError:
        return False


def learn(root: Path, *arguments: str) -> dict[str, Any]:
    """Run a `mnemorank learn` command and return its JSON output."""
    command = ["learn", *arguments, "--root", str(root), "--json"]
    print("$ mnemorank", *command, flush=True)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "mnemorank", *command], stdout=subprocess.PIPE, text=True, check=False)
    print(f"  exit {done.returncode} after {time.monotonic() - started:.0f} s", flush=True)
    output: dict[str, Any] = json.loads(done.stdout)
    return output


def seconds_until_served(client: httpx.Client, version: str) -> float:
    """Return the seconds until the server answers with the given version."""
    started = time.monotonic()
    body = {"query": "Who is it?", "memories": ["Ruby is a data engineer."], "test": True}
    while client.post("/v1/memories/rerank", json=body).raise_for_status().json()["model"]["version"] != version:
        if time.monotonic() - started > 60:
            raise SystemExit(f"{version} is not served; see server.log")
        time.sleep(0.05)
    return round(time.monotonic() - started, 2)


def preferences(triplets: list[Triplet], everything: list[Triplet], rng: random.Random) -> list[Example]:
    """Return examples labeled by what the users prefer."""
    examples = []
    for number, triplet in enumerate(triplets):
        candidates = tuple(
            Candidate(memory, float(is_preferred)) for memory, is_preferred in pool(triplet, everything, rng)
        )
        examples.append(Example(f"preference-{number}", triplet.query, candidates, group=triplet.group))
    return examples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="an empty folder for the loop (default: a temporary one)")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--users", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1, help="threads of the training")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--replay-weight", type=float, default=1.0, help="0 trains on feedback alone, which is faster")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    root: Path = arguments.root or Path(tempfile.mkdtemp(prefix="mnemorank-loop-"))
    root.mkdir(parents=True, exist_ok=True)
    (root / "learning.toml").write_text(SETTINGS.format(**vars(arguments)))
    rng = random.Random(arguments.seed)
    everything = list(read_triplets(bundled_dataset("dated", "train")))
    questions = list({triplet.query: triplet for triplet in everything}.values())
    rng.shuffle(questions)
    new_questions = questions[arguments.events :][:100]

    with server(root) as client:
        clicked = 0
        for triplet in questions[: arguments.events]:
            user = f"user{rng.randrange(arguments.users)}"
            clicked += session(client, triplet.query, pool(triplet, everything, rng), user, rng)
        print(f"{arguments.events} events, {clicked} with clicks", flush=True)
        mined = learn(root, "mine")
        run = learn(root, "train")
        if run["state"] != "done":
            raise SystemExit(f"the training failed: {run['error']}; see {root}/runs")
        decision = learn(root, "evaluate", run["version"])
        result: dict[str, Any] = {
            "mined": mined,
            "checks": {check["name"]: check["reason"] for check in decision["checks"]},
            "promoted": decision["promote"],
        }
        versions = VersionStore(root / "versions")
        first = load_artifact(versions.get("0001").path).manifest.version
        names = {name: versions.get(name).path for name in ("0001", run["version"])}
        if decision["promote"]:
            learn(root, "promote", run["version"])
            result["swap_seconds"] = seconds_until_served(client, run["id"])
            learn(root, "rollback")
            result["rollback_seconds"] = seconds_until_served(client, first)
    before, after = measure_models(list(names.values()), {"preferences": preferences(new_questions, everything, rng)})
    result["preferences"] = {
        metric: [round(measurement.sets["preferences"].mean(metric), 4) for measurement in (before, after)]
        for metric in ("map", "hit@1")
    }
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
