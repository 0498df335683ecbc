"""The streaming reader of JSON arrays and lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemorank import InputError
from mnemorank._internal.jsonio import read_json_lines, read_json_records

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(st.dictionaries(st.text(max_size=6), values, max_size=4), max_size=6),
    chunk=st.integers(1, 40),
    as_array=st.booleans(),
    escaped=st.booleans(),
)
def test_reads_back_what_was_written_whatever_the_chunk(tmp_path_factory, records, chunk, as_array, escaped):
    path = tmp_path_factory.mktemp("records") / "r.json"
    written = [json.dumps(record, ensure_ascii=escaped) for record in records]
    path.write_text("[" + ",\n".join(written) + "]\n" if as_array else "\n".join(written), encoding="utf-8")
    assert [record for _, record in read_json_records(path, chunk)] == records


def test_names_the_line_of_each_object(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('[\n{"a": 1},\n\n{"a":\n 2}\n]')
    assert [where.rsplit(":", 1)[1] for where, _ in read_json_records(path)] == ["2", "4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}, 3]', "r.json:1: expected a JSON object, got int"),
        ('[{"a": 1}', "r.json:1: expected , or ] after an object of the array, the file is cut off"),
        ('[\n{"a": 1}\n{"a": 2}]', "r.json:3: expected , or ] after an object of the array, got '{'"),
        ('{"a": 1}\n{"a": oops}\n', "r.json:2: not valid JSON"),
        ('[{"a": 1}] {}', "r.json:1: something follows the array"),
    ],
)
def test_errors_name_the_line(tmp_path, text, message):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        list(read_json_records(path))
    assert message in str(caught.value)


def test_a_bad_object_in_a_large_file_is_reported_without_reading_on(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('[{"a": oops},' + ",".join(json.dumps({"b": "x" * 100}) for _ in range(1000)) + "]")
    with pytest.raises(InputError, match=r"r.json:1: not valid JSON"):
        next(iter(read_json_records(path, 64)))


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n', encoding="utf-8-sig")
    assert [record for _, record in read_json_lines(path)] == [{"a": 1}]
