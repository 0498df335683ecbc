"""Read the records of memory stores (dicts, rows, documents, hits) as the fields of a Memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Any

from mnemorank.errors import InputError
from mnemorank.memory.values import DATE_FIELDS, ValueReader, as_id, is_missing, is_number

# The names that memory stores give to our fields, in order of preference.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "content", "memory", "page_content", "document", "fact"),
    "id": ("id", "_id", "memory_id", "doc_id", "node_id", "uuid", "uuid_"),
    "type": ("type", "fact_type", "memory_type"),
    "context": ("context",),
    "occurred_start": ("occurred_start", "valid_from", "valid_at", "start_date"),
    "occurred_end": ("occurred_end", "valid_to", "valid_until", "invalid_at", "end_date"),
    "mentioned_at": ("mentioned_at", "created_at", "timestamp", "date", "updated_at"),
    "speaker": ("speaker", "role"),
    "entities": ("entities",),
    "confidence": ("confidence",),
    "proof_count": ("proof_count",),
    "trust": ("trust",),
    "first_stage_score": (
        "first_stage_score",
        "score",
        "similarity",
        "_score",
        "relevance_score",
        "reranking_score",
        "relativity",
    ),
}
# Lower is better: negated and used as the score of a record that has none.
DISTANCES = ("distance", "_distance")
# Where a hit keeps the stored record: Pinecone, Haystack, agno, Qdrant, Elasticsearch, Weaviate, Milvus, Redis,
# LangGraph, CrewAI, LlamaIndex, Letta.
HOLDERS = (
    "metadata",
    "meta",
    "meta_data",
    "payload",
    "_source",
    "properties",
    "entity",
    "fields",
    "value",
    "record",
    "node",
    "passage",
)
# Read even if the text is elsewhere; the other holders are read only if they have the text.
_ALWAYS_READ = HOLDERS[:4]
# Holders that may be objects with a text of their own.
_OBJECT_HOLDERS = ("record", "node", "passage")
# What is read from a holder without the text: what retrieval libraries add to a document's metadata.
_METADATA_FIELDS = (*DATE_FIELDS, "first_stage_score")
# LangGraph's own examples store {"data": text}.
_VALUE_TEXT_NAMES = (*ALIASES["text"], "data")
_DATE_NAMES = tuple(name for field in DATE_FIELDS for name in ALIASES[field])
_SCORE_NAMES = (*ALIASES["first_stage_score"], *DISTANCES)
_ATTRIBUTES = (
    *(name for names in ALIASES.values() for name in names),
    *DISTANCES,
    "key",
    "namespace",
    "supersedes",
    "superseded_by",
)
# The last word of a name that probably holds a date.
_DATE_WORDS = frozenset("at created date datetime day modified since time timestamp until updated when".split())
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_DATE_LIKE_TEXT = re.compile(r"\d{4}|\d[/.:-]\d")
# Where clients keep the hits in their response.
_RESPONSE_LISTS = ("results", "matches", "points", "hits", "memories")
_CHROMA_RECORDS = (
    '[{"id": i, "text": t, "metadata": m, "distance": d} for i, t, m, d in '
    'zip(*(result[name][0] for name in ("ids", "documents", "metadatas", "distances")))]'
)


def as_mapping(value: object, text_field: str | None = None) -> Mapping[str, Any] | None:
    """Return a dict, a row, a LangChain Document or a hit object as a dict; None for anything else."""
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
    named = () if text_field is None else (text_field.partition(".")[0],)
    attributes = _attributes(value, (*_ATTRIBUTES, *named))
    return attributes if any(name in attributes for name in (*ALIASES["text"], *HOLDERS, *named)) else None


def as_pair(value: object) -> tuple[Any, str, Any] | None:
    """Split `(record, score)` into the record, the name of the score and the score; None for anything else.

    A named tuple of an object and its distance counts, too; the distance is negated.
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
    """Raise an InputError that says what to pass instead if this is not a collection of memories."""
    if isinstance(values, (list, tuple)):
        return
    parts = {name: _part(values, name) for name in ("ids", "documents", "columns", "page_content", *_RESPONSE_LISTS)}
    response_list = next((name for name in _RESPONSE_LISTS if isinstance(parts[name], list)), None)
    kind = type(values).__name__
    if isinstance(parts["ids"], list) and parts["documents"] is not None:
        got = f"the columns of a Chroma result; pass {_CHROMA_RECORDS}"
    elif response_list is not None:
        got = f"{kind}; pass its `{response_list}`"
    elif parts["columns"] is not None and not callable(parts["columns"]):
        got = f"{kind}; pass its rows, such as table.to_dict('records')"
    elif isinstance(values, (str, Mapping)) or parts["page_content"] is not None:
        got = f"a single {kind}"
    elif isinstance(values, Iterable):
        return
    else:
        got = kind
    raise InputError(f"expected a list of memories, got {got}", field="memories")


def _part(values: object, name: str) -> Any:
    return values.get(name) if isinstance(values, Mapping) else getattr(values, name, None)


def read_fields(
    record: Mapping[str, Any], text_field: str | None, reader: ValueReader, *, is_dict: bool
) -> dict[str, Any]:
    """Return the arguments of a Memory.

    Bad values in `metadata` and other holders are reported and never raised: they may mean something else there.

    :param text_field: the key of the text, or a path such as `payload.text`.
    :param is_dict: the caller passed a dict, not a row or an object that was turned into one.
    """
    path = _text_path(record, text_field, reader)
    home = path[:-1]  # what holds the text; empty if it is the record itself
    fields: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    names: dict[str, str] = {}  # the dotted name of each entry of the metadata
    used = _read_mapping(record, "", None if home else path[-1], True, reader, fields)
    lenient = replace(reader, on_error="skip")
    is_range_of_record = {"occurred_start", "occurred_end"} <= fields.keys()
    holders = [(name,) for name in _ALWAYS_READ if isinstance(record.get(name), Mapping)]
    # LangChain's vector stores put the metadata of a document into the payload that holds its text.
    nested = (*home, "metadata") if len(home) == 1 and isinstance(_at(record, (*home, "metadata")), Mapping) else None
    for place in dict.fromkeys([home, *([nested] if nested else []), *holders] if home else holders):
        inner = _at(record, place)
        is_home = place == home
        prefix = ".".join(place) + "."
        taken = _read_mapping(inner, prefix, path[-1] if is_home else None, is_home, lenient, fields)
        if len(place) == 1 or place == nested:
            used.add(place[0])
            for key, value in inner.items():
                if (not is_home or key not in taken) and (*place, key) != nested:
                    metadata[key] = value
                    names[key] = f"{prefix}{key}"
    used.update(name for name in _ALWAYS_READ if record.get(name) is None)
    unused = {key: value for key, value in record.items() if key not in used}
    metadata.update(unused)
    names.update((key, str(key)) for key in unused)
    _check_range(fields, reader if is_range_of_record else lenient)
    if not any(name in fields for name in DATE_FIELDS):
        _warn_of_unread_dates(metadata, names, reader)
    if not (is_dict and path == ("text",)):
        _rename_store_key(record, fields, metadata)
    return {**fields, "text": _at(record, path), "metadata": metadata}


def _rename_store_key(record: Mapping[str, Any], fields: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Keep the `key` of another store's record away from supersession, where equal keys mean "the same thing".

    LangGraph's key is an id within a namespace, MemOS's is a title.
    """
    if "key" not in metadata:
        return
    key = metadata.pop("key")
    namespace = record.get("namespace")
    if isinstance(namespace, (list, tuple)) and "key" in record and fields.get("id") is None:
        fields["id"] = "/".join(as_id(part) for part in (*namespace, key))
    else:
        metadata.setdefault("store_key", key)


def _read_mapping(
    values: Mapping[str, Any],
    prefix: str,
    text_key: str | None,
    is_record: bool,
    reader: ValueReader,
    fields: dict[str, Any],
) -> set[str]:
    """Add the fields that are not known yet; return the keys that were used.

    :param prefix: what errors put before the names of the mapping.
    :param text_key: the key of the text, which is not read as another field.
    :param is_record: read all fields rather than dates and score only, and let a bad value hide later ones.
    """
    used = {text_key} if text_key is not None else set()
    for field in ALIASES if is_record else _METADATA_FIELDS:
        name = _first_present(values, ALIASES[field])
        if name is None or name == text_key or field == "text" or field in fields:
            continue
        value = reader.value(field, prefix + name, values[name])
        if field != "confidence" or value is not None:
            used.add(name)
        if value is not None or (is_record and not is_missing(values[name])):
            fields[field] = value
    name = _first_present(values, DISTANCES)
    if name is not None and not prefix and "first_stage_score" not in fields:
        used.add(name)
        distance = reader.score(name, values[name])
        if distance is not None:
            fields["first_stage_score"] = -distance
    return used


def _text_path(record: Mapping[str, Any], text_field: str | None, reader: ValueReader) -> tuple[str, ...]:
    """Find the text: in the record, in a holder, or where the caller says."""
    places: list[tuple[str, ...]] = [(), *((name,) for name in HOLDERS if isinstance(record.get(name), Mapping))]
    if isinstance(_at(record, ("value", "content")), Mapping):  # LangMem: {"kind": ..., "content": {"content": ...}}
        places[places.index(("value",))] = ("value", "content")
    paths = []
    for place in places:
        names = (text_field,) if text_field is not None else ALIASES["text"]
        if place[:1] == ("value",) and text_field is None:
            names = _VALUE_TEXT_NAMES
        values = _at(record, place)
        key = next((name for name in names if values.get(name) is not None), None)
        key = key if key is not None else next((name for name in names if name in values), None)
        paths += [(*place, key)] if key is not None else []
    if text_field is not None:
        paths.append(tuple(text_field.split(".")))
    paths = [path for path in paths if path[-1] in (_at(record, path[:-1]) or ())]
    path = next((path for path in paths if _at(record, path) is not None), paths[0] if paths else None)
    if path is None:
        keys = [".".join((*place, str(key))) for place in places for key in _at(record, place) if (key,) not in places]
        expected = f"the field {text_field!r}" if text_field else "one of the fields " + ", ".join(ALIASES["text"])
        raise reader.error(f"expected {expected}; the record has {', '.join(keys) or 'no fields'}", code="missing")
    check_text(_at(record, path), ".".join(path), reader)
    return path


def check_text(text: object, name: str, reader: ValueReader) -> None:
    if isinstance(text, str):
        return
    got = "null" if text is None else type(text).__name__
    hint = f'; name the field of the text, such as field="{name}.text"' if isinstance(text, Mapping) else ""
    raise reader.error(f"expected a string, got {got}{hint}", name)


def _at(record: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value at a path, None if there is none."""
    value: Any = record
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _attributes(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes that are set, the holders, and what may hold an unread date, to warn of it.

    A `metadata` that is an object (Weaviate, MemOS) gives its dates and score.
    """
    holders = {name: _attribute(value, name) for name in HOLDERS}
    attributes: dict[str, Any] = {}
    if holders["metadata"] is not None and not isinstance(holders["metadata"], Mapping):
        attributes = _named_attributes(holders["metadata"], (*_DATE_NAMES, *_SCORE_NAMES))
    attributes.update(_named_attributes(value, names))
    has_text = any(name in attributes for name in ALIASES["text"])
    for name in () if has_text else _OBJECT_HOLDERS:
        if holders[name] is not None and not isinstance(holders[name], (str, Mapping)):
            holders[name] = _named_attributes(holders[name], (*_ATTRIBUTES, "metadata"))
    return {**attributes, **{name: each for name, each in holders.items() if isinstance(each, Mapping)}}


def _named_attributes(value: object, names: Iterable[str]) -> dict[str, Any]:
    found = {name: _attribute(value, name) for name in names}
    for name, each in getattr(value, "__dict__", {}).items():
        if name[:1] != "_" and (_is_date_name(name) or (isinstance(each, Mapping) and any(map(_is_date_name, each)))):
            found.setdefault(name, each)
    return {name: each for name, each in found.items() if each is not None and not callable(each)}


def _attribute(value: object, name: str) -> Any:
    """Return an attribute, None if there is none. LlamaIndex's `text` raises ValueError for nodes without a text."""
    try:
        return getattr(value, name, None)
    except ValueError:
        return None


def _check_range(fields: dict[str, Any], reader: ValueReader) -> None:
    """Drop both dates of a range if one is bad: a start alone would say that the fact still holds."""
    names = ("occurred_start", "occurred_end")
    start, end = (fields.get(name) for name in names)
    is_reversed = start and end and end.is_before(start)
    if is_reversed:
        reader.problem("occurred_end", f"{end} is before occurred_start {start}")
    if is_reversed or any(name in fields and fields[name] is None for name in names):
        fields.update(dict.fromkeys(names))


def _first_present(record: Mapping[str, Any], keys: Iterable[str]) -> str | None:
    present = [key for key in keys if key in record]
    return next((key for key in present if not is_missing(record[key])), present[0] if present else None)


def _warn_of_unread_dates(metadata: Mapping[str, Any], names: Mapping[str, str], reader: ValueReader) -> None:
    """Report what looks like the date of a memory without one, once per name and pool."""
    for key, value in metadata.items():
        for name, inner in _date_candidates(key, names[key], value):
            reader.warn_once(
                name,
                f"looks like a date ({inner!s:.40}) but is not used; rename it to occurred_start, occurred_end or "
                "mentioned_at",
            )


def _date_candidates(key: object, name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for inner_key, inner in value.items():
            if (inner_key in _DATE_NAMES or _is_date_name(inner_key)) and _is_date_like(inner):
                yield f"{name}.{inner_key}", inner
    elif key not in _DATE_NAMES and _is_date_name(key) and _is_date_like(value):
        yield name, value


@lru_cache(maxsize=4096)
def _is_date_name(name: object) -> bool:
    words = _NAME_WORD.findall(name) if isinstance(name, str) else []
    return bool(words) and words[-1].casefold() in _DATE_WORDS


def _is_date_like(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= 40 and _DATE_LIKE_TEXT.search(value) is not None
    if is_number(value):
        return bool(value >= 1e8)  # type: ignore[operator]
    return isinstance(value, date) or type(value).__name__ == "datetime64"
