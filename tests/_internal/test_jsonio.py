"""Reading JSON and JSON Lines files."""

from __future__ import annotations

import pytest

from mnemorank import InputError
from mnemorank._internal.jsonio import read_json, read_json_lines


def test_a_byte_order_mark_is_not_part_of_the_data(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n', encoding="utf-8-sig")
    assert [record for _, record in read_json_lines(path)] == [{"a": 1}]
    assert read_json(path) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "line"), [('{"a": 1}\n3\n', 2), ('{"a": 1}\n\n{"a": oops}\n', 3), ("[" * 20_000, 1), ('{"a": 1', 1)]
)
def test_errors_in_json_lines_have_a_location(tmp_path, text, line):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        list(read_json_lines(path))
    assert caught.value.location == f"{path}:{line}"


def test_an_error_in_a_json_file_has_the_line(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{\n"a": oops}')
    with pytest.raises(InputError) as caught:
        read_json(path)
    assert caught.value.location == f"{path}:2"


def test_a_missing_file_is_an_error_with_its_name(tmp_path):
    with pytest.raises(InputError) as caught:
        read_json(tmp_path / "none.json")
    assert (caught.value.location, caught.value.code) == (str(tmp_path / "none.json"), "unreadable")
