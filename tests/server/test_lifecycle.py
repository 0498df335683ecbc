"""`mnemorank serve` as a process: start, signals, shutdown, kill, and errors at start."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from mnemorank.cli import main
from mnemorank.server.auth import read_keys
from tests.server.test_model_slot import make_model


class Process:
    def __init__(self, *arguments: str, environment: dict[str, str] | None = None):
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "mnemorank", "serve", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.lines: list[str] = []
        self._announced = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._announced.wait(60), "".join(self.lines)
        self.url = re.search(r"serves on (http://\S+)", "".join(self.lines)).group(1)
        self.client = httpx.Client(base_url=self.url, timeout=60)
        end = time.monotonic() + 20
        while True:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/ready").status_code == 200:
                    break
            assert time.monotonic() < end
            time.sleep(0.02)

    def _read(self):
        for line in self.popen.stderr:
            self.lines.append(line)
            if "serves on" in line:
                self._announced.set()
        self._announced.set()

    def end(self):
        self.client.close()
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(10)
        self._reader.join(10)
        self.popen.stderr.close()


@pytest.fixture
def launch():
    processes = []

    def start(*arguments, **options):
        processes.append(Process(*arguments, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


def command(*arguments, code=None, **environment):
    """Run `mnemorank serve` until it exits."""
    words = ["-c", code] if code else ["-m", "mnemorank", "serve"]
    return subprocess.run(
        [sys.executable, *words, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
def test_sigterm_lets_running_requests_finish_and_exits_0(launch, tiny_onnx):
    process = launch("--model", str(tiny_onnx))
    answers = []
    body = {"query": "ruby", "texts": ["the cat and the dog and " * 8] * 4000}
    asking = threading.Thread(target=lambda: answers.append(process.client.post("/rerank", json=body)))
    asking.start()
    with httpx.Client(base_url=process.url) as other:
        while "mnemorank_pairs_total 0.0" in other.get("/metrics").text:
            time.sleep(0.01)
    process.popen.send_signal(signal.SIGTERM)
    asking.join(60)
    assert process.popen.wait(30) == 0
    assert answers[0].status_code == 200
    assert len(answers[0].json()) == 4000
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{process.url}/health", timeout=2)


def test_sighup_reloads_the_model(launch, tiny_onnx, tmp_path):
    folder = make_model(tiny_onnx, tmp_path / "first", 2.0)
    second = make_model(tiny_onnx, tmp_path / "second", 7.0)
    link = tmp_path / "model"
    link.symlink_to(folder)
    process = launch("--model", str(link), environment={"MNEMORANK_QUEUE_PAIRS": "123"})
    starting = next(line for line in process.lines if '"starting"' in line)
    assert '"queue_pairs": 123' in starting, "the settings are printed at start"
    before = process.client.get("/ready").json()["model"]
    os.symlink(second, tmp_path / "next")
    os.replace(tmp_path / "next", link)
    process.popen.send_signal(signal.SIGHUP)
    end = time.monotonic() + 20
    while process.client.get("/ready").json()["model"] == before:
        assert time.monotonic() < end
        time.sleep(0.05)
    body = {"query": "ruby", "texts": ["ruby"], "raw_scores": True}
    assert process.client.post("/rerank", json=body).json() == [{"index": 0, "score": -6.0}]


@pytest.mark.slow
def test_sigkill_loses_no_event_of_a_completed_request(launch, tiny_onnx, tmp_path):
    store = tmp_path / "feedback.db"
    process = launch("--model", str(tiny_onnx), "--store", f"sqlite:///{store}")
    answered = [
        process.client.post("/v1/memories/rerank", json={"query": "ruby", "memories": ["ruby"]}).json()["event_id"]
        for _ in range(10)
    ]
    process.popen.kill()
    process.popen.wait(10)
    again = launch("--model", str(tiny_onnx), "--store", f"sqlite:///{store}")
    answer = again.client.post("/v1/memories/rerank", json={"query": "ruby", "memories": ["ruby"]})
    assert answer.status_code == 200
    with contextlib.closing(sqlite3.connect(store)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        kept = {row[0] for row in database.execute("SELECT id FROM events")}
    assert kept >= {*answered, answer.json()["event_id"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "host: "),
        (["--host", "no such host", "--no-auth"], "host: "),
        (["--port", "http"], "port: "),
        (["--config", "no-such.toml"], "no-such.toml: "),
        (["--keys", "no-such.toml"], "no-such.toml: "),
        (["--new-key", "me"], "--keys: "),
        (["--keys", "k.toml", "--new-key", "me", "--scopes", "root"], "scopes: "),
    ],
)
def test_errors_at_start_exit_2_with_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_missing_model_exits_2():
    done = command("--model", "no-such-model", "--port", "0")
    assert done.returncode == 2
    assert "no model 'no-such-model'" in done.stderr.splitlines()[-1]


def test_a_failure_while_starting_exits_1(tiny_onnx, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("mnemorank.server.lifespan._reload_on_sighup", fail)
    monkeypatch.setattr("mnemorank.server.observability.configure_logging", lambda _: None)
    assert main(["serve", "--model", str(tiny_onnx), "--port", "0"]) == 1


def test_a_taken_port_exits_2(server, capsys):
    assert main(["serve", "--model", server.app.state.settings.model, "--port", str(server.port)]) == 2
    assert f"cannot listen on 127.0.0.1:{server.port}" in capsys.readouterr().err


def test_a_new_key_is_printed_once(tmp_path, capsys):
    keys = tmp_path / "keys.toml"
    arguments = [
        "serve",
        "--keys",
        str(keys),
        "--new-key",
        "agent",
        "--scopes",
        "read,feedback",
        "--key-tenant",
        "acme",
    ]
    assert main(arguments) == 0
    key = capsys.readouterr().out.strip()
    assert key.startswith("mnk_")
    assert key not in keys.read_text()
    caller = read_keys(keys).identify(key)
    assert (caller.name, caller.scopes, caller.tenant) == ("agent", {"read", "feedback"}, "acme")


def test_without_the_extra_the_error_names_it():
    code = "import sys; sys.modules['fastapi'] = None; from mnemorank.cli import main; sys.exit(main(['serve']))"
    done = command(code=code)
    assert done.returncode == 2
    assert "pip install 'mnemorank[serve]'" in done.stderr


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    assert "mnemorank serve --port 8000 --model mini" in shown
    assert "--no-batching" in shown


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="changes the limits of a running process")
def test_running_out_of_file_descriptors_neither_spins_nor_floods_the_log(launch, tiny_onnx):
    import resource

    process = launch("--model", str(tiny_onnx))
    pid = process.popen.pid
    open_files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_files + 10, open_files + 10))
    lines, seconds = len(process.lines), cpu_seconds(pid)
    address = ("127.0.0.1", httpx.URL(process.url).port)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(address)) for _ in range(60)]
        time.sleep(3)
        closed = 0
        for connection in connections:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                closed += connection.recv(1) == b""
        assert 45 <= closed < 60
        assert process.client.get("/health").status_code == 200, "connections from before go on"
    assert cpu_seconds(pid) - seconds < 1.5
    messages = [json.loads(line)["message"] for line in process.lines[lines:]]
    assert sum("file descriptors" in message for message in messages) == 1
    assert len(messages) < 10
    with httpx.Client(base_url=process.url) as other:
        assert other.get("/health").status_code == 200


def test_the_limit_of_open_files_is_raised_for_the_connections():
    code = """
import resource
from mnemorank.server.runner import raise_file_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_file_limit(100)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    assert command(code=code).stdout.strip() == "612"
