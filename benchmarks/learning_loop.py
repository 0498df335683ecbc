"""The learning loop on the bundled model, end to end: serve, feedback, mine, train, evaluate, promote, roll back.

    pip install 'mnemorank[serve,learn,train]'
    python benchmarks/learning_loop.py --root /tmp/loop

Everything runs as a user would run it: `mnemorank serve` in a process of its own, feedback over HTTP, and the
`mnemorank learn` commands that are printed as they are run. Training begins from the INT8 file that is served.

The memories are those of our dated set. Each question has its right memory twice, first hand and by hearsay, the
superseded one, and five of other matters. The users want it first hand, of which the model knows nothing; they read
from the top, often stop early, and now and then click the wrong one. The figures are MAP and hit@1 on the feedback
held out by the loop, the guard sets, and the users' true wishes on questions that nobody asked.
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
from mnemorank.learning.versions import Registry
from mnemorank.memory.memory import Memory

FIRST_HAND = ("I saw it myself.", "She told me so in person.", "We agreed on it together.", "I was there.")
HEARSAY = (
    "At least that is the rumour.",
    "Somebody mentioned it in passing.",
    "So the neighbours say.",
    "I only heard of it.",
)
LOOKED = (1.0, 0.8, 0.65, 0.55, 0.45, 0.4, 0.35, 0.3)
OTHERS = 5
SETTINGS = """
explore = 0.1
explore_seed = 1
[privacy]
texts = true
[training]
threads = {threads}
replay_weight = {replay_weight}
changes = ["train.epochs={epochs}"]
"""


def pool(triplet: Triplet, triplets: list[Triplet], source: random.Random) -> list[tuple[Memory, bool]]:
    """What the store finds for a question, each with whether the users want it."""
    right = triplet.positive
    found = [(with_note(right, FIRST_HAND, source), True), (with_note(right, HEARSAY, source), False)]
    others = source.sample([other.positive for other in triplets if other.group != triplet.group], OTHERS)
    for memory in (triplet.negative, *others):
        found.append((with_note(memory, source.choice((FIRST_HAND, HEARSAY)), source), False))
    source.shuffle(found)
    return found


def with_note(memory: Memory, notes: tuple[str, ...], source: random.Random) -> Memory:
    return replace(memory, text=f"{memory.text} {source.choice(notes)}")


def session(
    client: httpx.Client, query: str, found: list[tuple[Memory, bool]], user: str, source: random.Random
) -> bool:
    """A user asks, reads from the top, and clicks; returns whether there was a click."""
    body = {"query": query, "memories": [memory.to_dict() for memory, _ in found], "user": user}
    answer = client.post("/v1/memories/rerank", json=body).raise_for_status().json()
    clicks = []
    for result in answer["results"]:
        looks = source.random() < LOOKED[min(result["rank"], len(LOOKED) - 1)]
        if looks and (found[result["index"]][1] or source.random() < 0.03):
            clicks.append({"kind": "click", "rank": result["rank"]})
    if clicks:
        client.post("/v1/feedback", json={"event_id": answer["event_id"], "signals": clicks}).raise_for_status()
    return bool(clicks)


@contextmanager
def server(root: Path) -> Iterator[httpx.Client]:
    command = [sys.executable, "-m", "mnemorank", "serve", "--port", "0", "--learning", str(root)]
    print("$ mnemorank serve --port 0 --learning", root, flush=True)
    with (root / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
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


def learn(root: Path, *words: str) -> dict[str, Any]:
    """Run a command and give its JSON."""
    command = ["learn", *words, "--root", str(root), "--json"]
    print("$ mnemorank", *command, flush=True)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "mnemorank", *command], stdout=subprocess.PIPE, text=True, check=False)
    print(f"  exit {done.returncode} after {time.monotonic() - started:.0f} s", flush=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def seconds_until_served(client: httpx.Client, version: str) -> float:
    """How long the server takes to answer with another version."""
    started = time.monotonic()
    body = {"query": "Who is it?", "memories": ["Ruby is a data engineer."], "test": True}
    while client.post("/v1/memories/rerank", json=body).raise_for_status().json()["model"]["version"] != version:
        if time.monotonic() - started > 60:
            raise SystemExit(f"{version} is not served; see server.log")
        time.sleep(0.05)
    return round(time.monotonic() - started, 2)


def wishes(triplets: list[Triplet], everything: list[Triplet], source: random.Random) -> list[Example]:
    made = []
    for number, triplet in enumerate(triplets):
        candidates = tuple(Candidate(memory, float(wanted)) for memory, wanted in pool(triplet, everything, source))
        made.append(Example(f"wish-{number}", triplet.query, candidates, group=triplet.group))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of the loop, empty (default: a temporary one)")
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--users", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1, help="of the training")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--replay-weight", type=float, default=1.0, help="0 trains on feedback alone, faster")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    root: Path = arguments.root or Path(tempfile.mkdtemp(prefix="mnemorank-loop-"))
    root.mkdir(parents=True, exist_ok=True)
    (root / "learning.toml").write_text(SETTINGS.format(**vars(arguments)))
    source = random.Random(arguments.seed)
    everything = list(read_triplets(bundled_dataset("dated", "train")))
    asked = list({triplet.query: triplet for triplet in everything}.values())
    source.shuffle(asked)
    fresh = asked[arguments.events :][:100]

    with server(root) as client:
        clicked = 0
        for triplet in asked[: arguments.events]:
            user = f"user{source.randrange(arguments.users)}"
            clicked += session(client, triplet.query, pool(triplet, everything, source), user, source)
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
        registry = Registry(root / "registry")
        first = load_artifact(registry.version("0001").path).manifest.version
        names = {name: registry.version(name).path for name in ("0001", run["version"])}
        if decision["promote"]:
            learn(root, "promote", run["version"])
            result["swap_seconds"] = seconds_until_served(client, run["id"])
            learn(root, "rollback")
            result["rollback_seconds"] = seconds_until_served(client, first)
    before, after = measure_models(list(names.values()), {"wishes": wishes(fresh, everything, source)})
    result["wishes"] = {
        metric: [round(measured.sets["wishes"].mean(metric), 4) for measured in (before, after)]
        for metric in ("map", "hit@1")
    }
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
