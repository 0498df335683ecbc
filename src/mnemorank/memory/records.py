"""Records of other stores: dicts, rows, documents and hits, read as the fields of a Memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mnemorank.errors import InputError
from mnemorank.memory.values import DATES, Reader, is_missing, is_number

# The names that memory stores give to our fields, in order of preference.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "content", "memory", "page_content", "document", "fact"),
    "id": ("id", "_id", "memory_id", "doc_id", "node_id", "uuid"),
    "type": ("type", "fact_type", "memory_type"),
    "context": ("context",),
    "occurred_start": ("occurred_start", "valid_from", "valid_at", "start_date"),
    "occurred_end": ("occurred_end", "valid_to", "invalid_at", "end_date"),
    "mentioned_at": ("mentioned_at", "created_at", "timestamp", "date"),
    "speaker": ("speaker", "role"),
    "entities": ("entities",),
    "confidence": ("confidence",),
    "proof_count": ("proof_count",),
    "trust": ("trust",),
    "first_stage_score": ("first_stage_score", "score", "similarity", "_score"),
}
# Lower is better: read as minus the score where a record has no score.
DISTANCES = ("distance", "_distance")
# Where a hit keeps the record that was found. The first two are always looked into, the others only for the text.
HOLDERS = ("metadata", "payload", "_source", "properties", "entity", "fields")
_ALWAYS_READ = HOLDERS[:2]
# What is read of a holder that does not hold the text: what retrieval libraries put into a document's `metadata`.
_BESIDE_THE_TEXT = (*DATES, "first_stage_score")
# What supersession reads of a memory's metadata.
_MATTERS = ("key", "supersedes", "superseded_by")
_SCORES = (*ALIASES["first_stage_score"], *DISTANCES)
_ATTRIBUTES = (*(name for names in ALIASES.values() for name in names), *DISTANCES, *_MATTERS)
# Where clients keep the list of hits in their answer.
_ANSWERS = ("results", "matches", "points", "hits", "memories")
_FROM_CHROMA = (
    'make records of them: [{"id": i, "text": t, "metadata": m, "distance": d} for i, t, m, d in '
    'zip(*(found[name][0] for name in ("ids", "documents", "metadatas", "distances")))]'
)


def as_mapping(value: object, text_field: str | None = None) -> Mapping[str, Any] | None:
    """A dict, a row, a LangChain Document or an object with a hit's attributes as a dict; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (str, bytes, type)):
        return None
    if isinstance(value, tuple):
        return value._asdict() if hasattr(value, "_asdict") else None
    if isinstance(getattr(value, "page_content", None), str):
        return _attributes(value, ("id", "page_content"))
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return {key: value[key] for key in list(value.keys())}
    own = () if text_field is None else (text_field.partition(".")[0],)
    stated = _attributes(value, (*_ATTRIBUTES, *own))
    return stated if any(name in stated for name in (*ALIASES["text"], *HOLDERS, *own)) else None


def as_pair(value: object) -> tuple[Any, str, Any] | None:
    """The parts of `(record, score)`: the record, what the number is called, and the number; None if it is no pair.

    A row of an object and its distance is one too, and the distance is negated.
    """
    if not isinstance(value, tuple) or len(value) != 2 or not (value[1] is None or is_number(value[1])):
        return None
    names = getattr(value, "_fields", None)
    if names is None:
        return value[0], "score", value[1]
    if as_mapping(value[0]) is None:
        return None
    name = names[1]
    return value[0], name, -value[1] if name in DISTANCES and value[1] is not None else value[1]


def check_pool(values: object) -> None:
    """An error that says what to hand in instead, where this is no collection of memories."""
    if isinstance(values, (list, tuple)):
        return
    parts = {name: _part(values, name) for name in ("ids", "documents", "columns", "page_content", *_ANSWERS)}
    answer = next((name for name in _ANSWERS if isinstance(parts[name], list)), None)
    kind = type(values).__name__
    if isinstance(parts["ids"], list) and parts["documents"] is not None:
        found = "columns, as Chroma gives them; " + _FROM_CHROMA
    elif answer is not None:
        found = f"{kind}; hand in its `{answer}`"
    elif parts["columns"] is not None and not callable(parts["columns"]):
        found = f"{kind}; hand in its rows, such as table.to_dict('records')"
    elif isinstance(values, (str, Mapping)) or parts["page_content"] is not None:
        found = f"a single {kind}"
    elif isinstance(values, Iterable):
        return
    else:
        found = kind
    raise InputError(f"expected a list of memories, got {found}", field="memories")


def _part(values: object, name: str) -> Any:
    return values.get(name) if isinstance(values, Mapping) else getattr(values, name, None)


def fields_of(record: Mapping[str, Any], text_field: str | None, read: Reader) -> dict[str, Any]:
    """The arguments of a Memory.

    What only `metadata` or another holder says is read from there, where a bad value is reported and never an error.

    :param text_field: the key that holds the text, or a path such as `payload.text`.
    """
    path = _text_path(record, text_field, read.where)
    home = path[:-1]
    fields: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    used = _read(record, "", None if home else path[-1], True, read, fields)
    lenient = replace(read, on_error="skip")
    is_stated = {"occurred_start", "occurred_end"} <= fields.keys()
    holders = [(name,) for name in _ALWAYS_READ if isinstance(record.get(name), Mapping)]
    # LangChain's own stores keep a document's metadata within the payload that holds its text.
    nested = (*home, "metadata") if len(home) == 1 and isinstance(_at(record, (*home, "metadata")), Mapping) else None
    for place in dict.fromkeys([home, *([nested] if nested else []), *holders] if home else holders):
        inner = _at(record, place)
        is_home = place == home
        taken = _read(inner, ".".join(place) + ".", path[-1] if is_home else None, is_home, lenient, fields)
        if len(place) == 1 or place == nested:
            used.add(place[0])
            taken = taken if is_home else set()
            rest.update((key, value) for key, value in inner.items() if key not in taken and (*place, key) != nested)
    used.update(name for name in _ALWAYS_READ if record.get(name) is None)
    rest.update((key, value) for key, value in record.items() if key not in used)
    _check_range(fields, read if is_stated else lenient)
    return {**fields, "text": _at(record, path), "metadata": rest}


def _read(
    values: Mapping[str, Any], prefix: str, text_key: str | None, is_record: bool, read: Reader, fields: dict[str, Any]
) -> set[str]:
    """Add the fields that are not known yet; return the keys that were used.

    :param prefix: how errors name the mapping.
    :param text_key: the field that serves as the text is not also another field.
    :param is_record: all fields are the memory's, and one that cannot be read counts as given.
    """
    used = {text_key} if text_key is not None else set()
    for name in ALIASES if is_record else _BESIDE_THE_TEXT:
        source = _first_present(values, ALIASES[name])
        if source is None or source == text_key or name == "text" or name in fields:
            continue
        value = read.value(name, prefix + source if prefix else _as_written(name, source), values[source])
        if name != "confidence" or value is not None:
            used.add(source)
        if value is not None or (is_record and not is_missing(values[source])):
            fields[name] = value
    source = _first_present(values, DISTANCES)
    if source is not None and not prefix and "first_stage_score" not in fields:
        used.add(source)
        distance = read.score(source, values[source])
        if distance is not None:
            fields["first_stage_score"] = -distance
    return used


def _text_path(record: Mapping[str, Any], text_field: str | None, where: str) -> tuple[str, ...]:
    """Where the text stands: in the record, in a holder, or where the caller says."""
    names = ALIASES["text"] if text_field is None else (text_field,)
    places: list[tuple[str, ...]] = [(), *((name,) for name in HOLDERS if isinstance(record.get(name), Mapping))]
    found = [(*place, key) for place in places if (key := _first_present(_at(record, place), names)) is not None]
    if text_field is not None:
        found.append(tuple(text_field.split(".")))
    found = [path for path in found if path[-1] in (_at(record, path[:-1]) or ())]
    path = next((path for path in found if _at(record, path) is not None), found[0] if found else None)
    if path is None:
        shown = [".".join((*place, str(key))) for place in places for key in _at(record, place) if (key,) not in places]
        wanted = f"the field {text_field!r}" if text_field else "a text: one of " + ", ".join(ALIASES["text"])
        raise InputError(f"{where}: expected {wanted}; the record has {', '.join(shown) or 'no fields'}")
    check_text(_at(record, path), where, ".".join(path))
    return path


def _at(record: Mapping[str, Any], path: Sequence[str]) -> Any:
    """What stands at a path; None where there is nothing, or no dict on the way."""
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _attributes(value: object, names: Iterable[str]) -> dict[str, Any]:
    """The attributes that are set, and the holders among them that are dicts; of a `metadata` that is an object, as
    Weaviate has it, the score."""
    holders = {name: getattr(value, name, None) for name in HOLDERS}
    about = holders["metadata"]
    told = {} if about is None or isinstance(about, Mapping) else {n: getattr(about, n, None) for n in _SCORES}
    stated = {**told, **{name: own for name in names if (own := getattr(value, name, None)) is not None}}
    stated = {name: each for name, each in stated.items() if each is not None and not callable(each)}
    return {**stated, **{name: each for name, each in holders.items() if isinstance(each, Mapping)}}


def _as_written(name: str, source: str) -> str:
    """How an error calls a field: by our name, and by the caller's where that is another."""
    return name if source == name else f"{source} ({name})"


def _check_range(fields: dict[str, Any], read: Reader) -> None:
    """A range with a bad half is no range: half of it would say `ongoing` of something that ended."""
    names = ("occurred_start", "occurred_end")
    start, end = (fields.get(name) for name in names)
    is_turned = start and end and end.is_before(start)
    if is_turned:
        read.problem(f"occurred_end: {end} is before occurred_start {start}")
    if is_turned or any(name in fields and fields[name] is None for name in names):
        fields.update(dict.fromkeys(names))


def _first_present(record: Mapping[str, Any], keys: Iterable[str]) -> str | None:
    return next(
        (key for key in keys if record.get(key) is not None), next((key for key in keys if key in record), None)
    )


def check_text(text: object, where: str, key: str) -> None:
    if isinstance(text, str):
        return
    shown = "nothing (null)" if text is None else type(text).__name__
    way_out = f'; say where the text is, such as field="{key}.text"' if isinstance(text, Mapping) else ""
    raise InputError(f"{where}: {key}: expected a string, got {shown}{way_out}")
