"""Every command line of the README and the docs is valid, and the reference lists every option."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mnemorank.cli import COMMANDS, build_parser
from tests.docs.markdown import read_blocks, read_commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs/reference/cli.md"
_INLINE = re.compile(r"`mnemorank ([^`]+)`")
_OPTION = re.compile(r"--[a-z][a-z-]*")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser) -> set[str]:
    """The long options of a command and its subcommands."""
    own = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}
    return own.union(*map(_options, _subcommands(parser).values())) - {"--help"}


def _inline_commands(page: Path) -> Iterator[list[str]]:
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for match in _INLINE.finditer(prose):
        yield match.group(1).split()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_console_examples_parse(page: Path):
    for block in read_blocks(page):
        if block.language == "console":
            for command in read_commands(block):
                if command.arguments and command.arguments[0] == "mnemorank" and "--help" not in command.arguments:
                    build_parser().parse_args([word for word in command.arguments[1:] if word != "&"])


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_in_the_text_exist(page: Path):
    for words in _inline_commands(page):
        if words[0].startswith("-"):
            continue
        assert words[0] in COMMANDS, f"{_name(page)}: mnemorank {' '.join(words)}"
        parser = _subcommands(build_parser())[words[0]]
        unknown = set(_OPTION.findall(" ".join(words))) - _options(parser) - {"--help"}
        assert not unknown, f"{_name(page)}: mnemorank {' '.join(words)}"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_lists_every_option(command: str):
    sections = re.split(r"^## ", REFERENCE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.startswith(f"{command}\n")]
    listed = set(_OPTION.findall(section))
    options = _options(_subcommands(build_parser())[command])

    assert listed == options, f"missing: {sorted(options - listed)}, unknown: {sorted(listed - options)}"
