"""Finding and reading recipes: TOML files, those that come with mnemorank, and changes made on the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from mnemorank._internal.old_config import read_table
from mnemorank.data.sources import Source
from mnemorank.errors import InputError
from mnemorank.training.recipe import FeatureNoise, Lists, LossTable, Recipe, Stage


def load_recipe(name: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe and check it.

    :param name: a TOML file, or the name of a recipe that comes with mnemorank.
    :param changes: `key=value` each, such as `model.base=/models/minilm` or `stage.0.epochs=2`; without a value the key
        is taken out.
    """
    path = find_recipe(name)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: cannot be read as TOML: {error}") from None
    for change in changes:
        table = _changed(table, change)
    return parse_recipe(table, where=path.name, name=path.stem)


def parse_recipe(table: Mapping[str, Any], where: str = "recipe", name: str | None = None) -> Recipe:
    """A recipe from tables; stages are filled up from the tables `train`, `data`, `loss`, `lists`, `features`."""
    rest = {"name": name, **table} if name else dict(table)
    train = rest.pop("train", {})
    if not isinstance(train, Mapping):
        raise InputError(f"{where}: train: expected a table, [train], got {train!r:.60}")
    shared = dict(train)
    shared |= {key: rest.pop(key) for key in ("data", "loss", "lists", "features") if key in rest}
    stages = rest.pop("stage", [{}])
    if not isinstance(stages, list) or not all(isinstance(stage, Mapping) for stage in stages) or not stages:
        raise InputError(f"{where}: stage: expected a list of tables, [[stage]]")
    rest["stage"] = [
        {"name": f"stage-{i + 1}" if len(stages) > 1 else "train", **shared, **stage} for i, stage in enumerate(stages)
    ]
    _check_shared(shared, where)
    recipe = replace(read_table(Recipe, rest, where), tables=dict(table))
    for i, stage in enumerate(recipe.stage):
        for key in ("data", "loss"):
            if not getattr(stage, key):
                raise InputError(f"{where}: {key}: is required: at least one [[{key}]] for stage {i + 1}")
        _check_names(stage.data, where)
    return recipe


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe, given as a path or by the name of one that comes with mnemorank."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if str(name) in shipped:
        return shipped[str(name)]
    raise InputError(
        f"no recipe {str(name)!r}: neither a file nor one of {', '.join(shipped) or 'the shipped recipes'}"
    )


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with mnemorank: in `assets/recipes`."""
    folder = Path(str(files("mnemorank"))) / "assets" / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _check_shared(shared: Mapping[str, Any], where: str) -> None:
    """Read the shared tables once under the names the user gave them, so that errors do not speak of stages."""
    train = {key: value for key, value in shared.items() if key not in ("data", "loss", "lists", "features")}
    read_table(Stage, train, f"{where}: train")
    for key, kind in (("data", Source), ("loss", LossTable)):
        tables = shared.get(key, [])
        if not isinstance(tables, list):
            raise InputError(f"{where}: {key}: expected a list of tables, [[{key}]]")
        for i, table in enumerate(tables):
            read_table(kind, table, f"{where}: {key}[{i}]")
    read_table(Lists, shared.get("lists", {}), f"{where}: lists")
    read_table(FeatureNoise, shared.get("features", {}), f"{where}: features")


def _check_names(sources: Sequence[Source], where: str) -> None:
    """A stage knows its lists by their source's name: two of one name cannot be read differently."""
    first: dict[str, Source] = {}
    for i, source in enumerate(sources):
        other = first.setdefault(source.display_name, source)
        for key in ("mask_rate", "label_conflicts"):
            if getattr(source, key) != getattr(other, key):
                raise InputError(
                    f"{where}: data[{i}].{key}: differs from that of another source called {source.display_name!r}; "
                    "give each a name of its own"
                )


def _changed(table: Mapping[str, Any], change: str) -> dict[str, Any]:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set: expected key=value, got {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text or None
    return _put(table, key.strip().split("."), value, key)  # type: ignore[no-any-return]


def _there(node: Mapping[str, Any]) -> str:
    return f"; there are: {', '.join(node)}" if node else ""


def _put(node: Any, keys: list[str], value: object, whole: str) -> Any:
    """A copy of the tables with one value changed, or taken out where it is None; lists are entered by position."""
    head, *rest = keys
    if isinstance(node, list):
        if not head.isdigit() or int(head) >= len(node):
            raise InputError(f"--set: {whole}: expected a position from 0 to {len(node) - 1} in the place of {head!r}")
        at = int(head)
        if not rest and value is None:
            return [*node[:at], *node[at + 1 :]]
        return [*node[:at], _put(node[at], rest, value, whole) if rest else value, *node[at + 1 :]]
    if not isinstance(node, Mapping):
        raise InputError(f"--set: {whole}: {head!r} is inside of a value, not of a table")
    if not rest and value is None:
        if head not in node:
            raise InputError(f"--set: {whole}: there is no such key to take out{_there(node)}")
        return {key: kept for key, kept in node.items() if key != head}
    return {**node, head: _put(node.get(head, {}), rest, value, whole) if rest else value}
