"""Reading the objects of JSON arrays and JSON Lines, and their fields."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemorank import InputError, Moment
from mnemorank.data.records import Record, read_records

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**63, 2**63 - 1)  # what ijson parses
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(st.dictionaries(st.text(max_size=6), values, max_size=4), max_size=6),
    as_array=st.booleans(),
    escaped=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
)
def test_reads_back_what_was_written(tmp_path_factory, records, as_array, escaped, encoding):
    path = tmp_path_factory.mktemp("records") / "r.json"
    written = [json.dumps(record, ensure_ascii=escaped) for record in records]
    path.write_text("[" + ",\n".join(written) + "]\n" if as_array else "\n".join(written), encoding=encoding)
    assert [record.values for record in read_records(path)] == records


def test_locations_are_indices_in_arrays_and_lines_in_json_lines(tmp_path):
    array, lines = tmp_path / "a.json", tmp_path / "l.jsonl"
    array.write_text('[\n{"a": 1},\n\n{"a":\n 2}\n]')
    lines.write_text('{"a": 1}\n\n{"a": 2}\n')
    assert [record.location for record in read_records(array)] == [f"{array}[0]", f"{array}[1]"]
    assert [record.location for record in read_records(lines)] == [f"{lines}:1", f"{lines}:3"]


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ('[{"a": 1}, 3]', "r.json[1]"),
        ('[{"a": 1}', "r.json[1]"),
        ('[\n{"a": 1}\n{"a": 2}]', "r.json[1]"),
        ('[{"a": oops}]', "r.json[0]"),
        ('{"a": 1}\n{"a": oops}\n', "r.json:2"),
        ('[{"a": 1}] {}', "r.json[1]"),
        ('[{"a": 123456789012345678901234567890}]', "r.json[0]"),
    ],
)
def test_errors_have_a_location(tmp_path, text, location):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        list(read_records(path))
    assert caught.value.location == str(tmp_path / location)


def test_a_bad_object_in_a_large_file_is_reported_before_the_rest_is_read(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('[{"a": oops},' + ",".join(json.dumps({"b": "x" * 100}) for _ in range(1000)) + "]")
    with pytest.raises(InputError) as caught:
        next(iter(read_records(path)))
    assert caught.value.location == f"{path}[0]"


def test_compressed_arrays(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    content = b'\xef\xbb\xbf[{"a": 1}, {"a": 2}]'
    (tmp_path / "r.json.gz").write_bytes(gzip.compress(content))
    (tmp_path / "r.json.zst").write_bytes(zstandard.compress(content))
    for name in ("r.json.gz", "r.json.zst"):
        assert [record.values for record in read_records(tmp_path / name)] == [{"a": 1}, {"a": 2}]


def test_damaged_compressed_arrays_are_errors(tmp_path):
    path = tmp_path / "r.json.gz"
    whole = gzip.compress(json.dumps([{"a": str(number)} for number in range(4000)]).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError) as caught:
        list(read_records(path))
    assert caught.value.code == "unreadable"


RECORD = Record(
    {
        "name": "ann",
        "blank": " ",
        "count": 3,
        "flag": True,
        "share": 0.5,
        "date": "2024-03",
        "items": [{"name": "a"}, {"name": 1}],
        "mixed": [{}, 2],
        "inner": {"name": "b"},
        "nothing": None,
    },
    "d.jsonl:7",
)


def test_fields_of_a_record():
    assert RECORD.text("name") == "ann"
    assert RECORD.get("count", int) == 3
    assert (RECORD.optional_text("nothing"), RECORD.optional_text("unknown")) == (None, None)
    assert (RECORD.optional_list("nothing"), len(RECORD.optional_list("items"))) == ([], 2)
    assert (RECORD.number("share", 0.0, 1.0), RECORD.number("unknown", 0.25, 1.0)) == (0.5, 0.25)
    assert (RECORD.moment("date"), RECORD.moment("nothing")) == (Moment(2024, 3), None)
    assert RECORD.object("inner").text("name") == "b"
    assert [record.path for record in RECORD.objects("items")] == ["items.0", "items.1"]


@pytest.mark.parametrize(
    ("read", "field"),
    [
        (lambda record: record.text("blank"), "blank"),
        (lambda record: record.text("unknown"), "unknown"),
        (lambda record: record.get("unknown", str), "unknown"),
        (lambda record: record.get("flag", int), "flag"),
        (lambda record: record.get("name", list), "name"),
        (lambda record: record.optional_text("count"), "count"),
        (lambda record: record.optional_list("name"), "name"),
        (lambda record: record.number("count", 0.0, 1.0), "count"),
        (lambda record: record.number("flag", 0.0, 1.0), "flag"),
        (lambda record: record.moment("name"), "name"),
        (lambda record: record.objects("mixed"), "mixed.1"),
        (lambda record: record.objects("items")[1].text("name"), "items.1.name"),
        (lambda record: record.object("name"), "name"),
    ],
)
def test_invalid_fields_are_errors_with_field_and_location(read, field):
    with pytest.raises(InputError) as caught:
        read(RECORD)
    assert (caught.value.field, caught.value.location) == (field, "d.jsonl:7")
