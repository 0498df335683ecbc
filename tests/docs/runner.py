"""Run the examples of a page from top to bottom, as a reader would."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import mnemorank
from mnemorank.cli import main
from tests.docs.markdown import Block, Command, read_blocks, read_commands
from tests.docs.output import ELLIPSIS, matches, matches_json

# Where the pages' examples find the server; the tests start it on a free port.
ADDRESS = "localhost:8000"
# Programs that the pages show and the tests leave to the reader.
NOT_OURS = ("cd", "docker", "git", "make", "mkdir", "pip", "sudo", "systemctl")
# Set to rewrite the outputs that the pages show.
UPDATE = "MNEMORANK_UPDATE_DOCS"


class PageRunner:
    """Executes the blocks of one page in the current folder.

    Python blocks share a namespace. A `text` block after a Python block is its output, a `json` block after a console
    block the response of its last command. Blocks with a title are files.
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.output = ""
        self.server: subprocess.Popen[bytes] | None = None
        self.address = ADDRESS
        self.edits: list[tuple[int, int, str]] = []

    def run(self) -> None:
        """Run all blocks; raise AssertionError with the line of the first whose output differs."""
        try:
            for block in read_blocks(self.page):
                if block.no_run is None:
                    self._run_block(block)
        finally:
            self._stop_server()
        self._write_edits()

    def _run_block(self, block: Block) -> None:
        if block.title is not None:
            target = Path(block.title)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            self.output = self._run_python(block)
        elif block.language == "console":
            for command in read_commands(block):
                self.output = self._run_command(command, block)
                if command.output:
                    self._check(command.output, self.output, block.line + command.output_line)
        elif block.language in ("text", "json") and block.follows_code:
            self._check(block.code, self.output, block.line, is_json=block.language == "json")

    def _run_python(self, block: Block) -> str:
        # Blank lines before the code give tracebacks the page's line numbers.
        source = "\n" * (block.line - 1) + block.code.replace(ADDRESS, self.address)
        code = compile(source, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            result = eval(code, self.namespace)
            if result is not None:
                asyncio.run(result)
        return output.getvalue()

    def _run_command(self, command: Command, block: Block) -> str:
        program, *arguments = [argument.replace(ADDRESS, self.address) for argument in command.arguments]
        where = f"{self.page}:{block.line + command.line}"
        if program in NOT_OURS:
            return command.output
        if program == "curl":
            return _send(arguments)
        if program == "kill":
            self._stop_server()
            return command.output
        assert program == "mnemorank", f"{where}: unknown program {program!r}"
        if arguments[0] == "serve" and "--new-key" not in arguments and "--help" not in arguments:
            self._start_server([argument for argument in arguments if argument != "&"])
            return command.output
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
            try:
                status = main(arguments)
            except SystemExit as stop:
                status = stop.code
        assert status in (0, None), f"{where}: exit status {status}\n{errors.getvalue()}"
        return output.getvalue()

    def _start_server(self, arguments: list[str]) -> None:
        self._stop_server()
        log = Path("server.log")
        with log.open("w", encoding="utf-8") as stream:
            command = [sys.executable, "-m", "mnemorank", *_with_free_port(arguments)]
            environment = {**os.environ, "PYTHONPATH": str(Path(mnemorank.__file__).parents[1])}
            self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream, env=environment)
        self.address = self._wait_for_address(log)

    def _wait_for_address(self, log: Path, seconds: float = 60) -> str:
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            found = re.search(r"http://(127\.0\.0\.1:[1-9]\d*)", log.read_text(encoding="utf-8"))
            if found and _is_ready(f"http://{found[1]}/ready"):
                return found[1]
            assert self.server is not None
            assert self.server.poll() is None, log.read_text(encoding="utf-8")
            time.sleep(0.1)
        raise AssertionError(f"the server did not start\n{log.read_text(encoding='utf-8')}")

    def _stop_server(self) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.wait(30)
            self.server = None

    def _check(self, expected: str, actual: str, line: int, *, is_json: bool = False) -> None:
        agree = matches_json(expected, actual) if is_json else matches(expected, actual)
        if agree:
            return
        if os.environ.get(UPDATE) and ELLIPSIS not in expected:
            shown = json.dumps(json.loads(actual), indent=2, ensure_ascii=False) if is_json else actual.strip("\n")
            self.edits.append((line - 1, expected.count("\n"), shown))
            return
        raise AssertionError(f"{self.page}:{line}: expected\n{expected}\ngot\n{actual}")

    def _write_edits(self) -> None:
        if not self.edits:
            return
        lines = self.page.read_text(encoding="utf-8").split("\n")
        for start, count, text in reversed(self.edits):
            indent = " " * (len(lines[start]) - len(lines[start].lstrip()))
            lines[start : start + count] = [f"{indent}{line}".rstrip() for line in text.split("\n")]
        self.page.write_text("\n".join(lines), encoding="utf-8")


def _with_free_port(arguments: list[str]) -> list[str]:
    if "--port" in arguments:
        position = arguments.index("--port")
        arguments = arguments[:position] + arguments[position + 2 :]
    return [*arguments, "--port", "0"]


def _is_ready(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


def _send(arguments: list[str]) -> str:
    """What curl prints: the body of the response, an error's too."""
    url, method, body, headers = "", None, None, {}
    words = iter(arguments)
    for word in words:
        if word in ("-s", "-sS"):
            continue
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(":")
            headers[name] = value.strip()
        elif word in ("-d", "--json"):
            body = next(words).encode()
            headers.setdefault("content-type", "application/json")
        else:
            url = word if word.startswith("http") else f"http://{word}"
    request = urllib.request.Request(url, data=body, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


if __name__ == "__main__":  # `make test-integrations` runs pages in environments without the other tests' needs
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            PageRunner(path).run()
