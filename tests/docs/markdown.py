"""Fenced code blocks of a Markdown page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*) *(?P<options>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_NO_RUN = re.compile(r"<!-- no-run: (.+?) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block.

    :param title: the name of a file, for blocks that show one.
    :param line: the number of the block's first line of code, from 1.
    :param no_run: why the block cannot be executed, from a `<!-- no-run: reason -->` comment above it.
    :param follows_code: whether only blank lines separate it from the block before it.
    """

    language: str
    code: str
    line: int
    title: str | None = None
    no_run: str | None = None
    follows_code: bool = False

    @property
    def length(self) -> int:
        return self.code.count("\n")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a `console` block and the output that the page shows for it.

    :param line: the line of the command within its block, from 0.
    :param output_line: the line of its first line of output within the block.
    """

    arguments: list[str]
    output: str
    line: int
    output_line: int


def read_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    blocks: list[Block] = []
    lines = page.read_text(encoding="utf-8").split("\n")
    number, no_run, follows_code = 0, None, False
    while number < len(lines):
        line = lines[number]
        number += 1
        opening = _FENCE.match(line)
        if opening is None:
            if line.strip():
                reason = _NO_RUN.search(line)
                no_run, follows_code = (reason.group(1) if reason else None), False
            continue
        start, indent = number, opening["indent"]
        while lines[number].rstrip() != f"{indent}```":
            number += 1
        code = "".join(text.removeprefix(indent) + "\n" for text in lines[start:number])
        title = _TITLE.search(opening["options"])
        blocks.append(Block(opening["language"], code, start + 1, title and title.group(1), no_run, follows_code))
        number += 1
        no_run, follows_code = None, True
    return blocks


def read_commands(block: Block) -> Iterator[Command]:
    """Split a `console` block into commands, which begin with `$ `, and their output."""
    lines = block.code.split("\n")[:-1]
    number = 0
    while number < len(lines):
        first = number
        if not lines[first].startswith("$ "):
            raise ValueError(f"line {block.line + first}: expected a command that begins with '$ '")
        text = lines[first][2:]
        number += 1
        while (arguments := _split(text)) is None:
            text = (
                text.removesuffix("\\") + "\n" + lines[number] if not text.endswith("\\") else text[:-1] + lines[number]
            )
            number += 1
        output = number
        while number < len(lines) and not lines[number].startswith("$ "):
            number += 1
        yield Command(arguments, "".join(line + "\n" for line in lines[output:number]), first, output)


def _split(text: str) -> list[str] | None:
    """The words of a command, or None if it continues on the next line."""
    if text.endswith("\\"):
        return None
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return None
