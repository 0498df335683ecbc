import gzip
import io

import pytest

from mnemorank import InputError, Moment
from mnemorank._internal.jsonio import read_json_lines
from mnemorank.memory.files import load_memories

LINES = '{"text": "a", "occurred_start": "2024"}\n\n{"text": "b"}\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.jsonl", LINES),
        ("m.json", '[{"text": "a", "occurred_start": "2024"}, {"text": "b"}]'),
        ("m.csv", "text,occurred_start\na,2024\nb,\n"),
        ("m.txt", LINES),
        ("m", "\ufefftext,occurred_start\na,2024\nb,\n"),
    ],
)
def test_the_three_formats(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    first, second = load_memories(tmp_path / name)
    assert (first.text, first.occurred_start, second.text) == ("a", Moment(2024), "b")


def test_gz_and_standard_input(tmp_path, monkeypatch):
    with gzip.open(tmp_path / "m.jsonl.gz", "wt") as stream:
        stream.write(LINES)
    assert len(load_memories(tmp_path / "m.jsonl.gz")) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(LINES))
    assert len(load_memories("-")) == 2


def test_csv_with_quotes_and_line_breaks(tmp_path):
    (tmp_path / "m.csv").write_text('body,entities\n"a, ""b""\nc","x, y"\n')
    (memory,) = load_memories(tmp_path / "m.csv", field="body")
    assert memory.text == 'a, "b"\nc'
    assert memory.entities == ("x", "y")


@pytest.mark.parametrize(
    ("name", "content", "location", "field"),
    [
        ("m.jsonl", '{"text": "a"}\n{"text": \n', "m.jsonl:2", None),
        ("m.jsonl", '{"text": "a"}\n{"text": 5}\n', "m.jsonl:2", "text"),
        ("m.jsonl", '{"text": "a", "occurred_start": "x"}', "m.jsonl:1", "occurred_start"),
        ("m.json", '{"text": "a"}x', "m.json:1", None),
        ("m.json", '["a", 5]', "m.json", "memories.1"),
        ("m.json", '["a", {"text": "b", "date": "x"}]', "m.json", "memories.1.date"),
        ("m.json", "[", "m.json:1", None),
        ("m.csv", "text,b\na\n", "m.csv:2", None),
        ("m.csv", "title\na\n", "m.csv:2", None),
        ("m.csv", "text,trust\na,1\nb,high\n", "m.csv:3", "trust"),
        ("m.csv", 'text\n"a\n', "m.csv:1", None),
        ("m.csv", "text,text\na,b\n", "m.csv:1", None),
        ("m.csv", "text\n", "m.csv", None),
        ("m", "5", "m", None),
        ("m.jsonl", '{"text": "a", "x": ' + "9" * 5000 + "}", "m.jsonl:1", None),
        ("m.jsonl", "[" * 20_000, "m.jsonl:1", None),
    ],
)
def test_errors_have_a_location_and_a_field(tmp_path, name, content, location, field):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        load_memories(tmp_path / name)
    error = caught.value
    assert (error.location, error.field) == (str(tmp_path / location), field)
    assert str(error) == ": ".join(part for part in (error.location, field, error.message) if part)


def test_an_error_names_the_columns_of_a_file_without_text(tmp_path):
    (tmp_path / "m.csv").write_text("title\na\n")
    with pytest.raises(InputError, match="title"):
        load_memories(tmp_path / "m.csv")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl"):
        load_memories(tmp_path / "none.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match=r"b\.jsonl"):
        load_memories(tmp_path / "b.jsonl")


def test_csv_keeps_odd_line_breaks_and_long_texts(tmp_path):
    (tmp_path / "m.csv").write_text("text\nhello\x0cworld\u2028again\n" + "x" * 200_000 + "\n", encoding="utf-8")
    assert [len(m.text) for m in load_memories(tmp_path / "m.csv")] == [17, 200_000]


def test_csv_with_a_quoted_header_is_not_taken_for_json_lines(tmp_path, monkeypatch):
    content = '"text","occurred_start"\n"a","2024"\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    (memory,) = load_memories("-")
    assert (memory.text, memory.occurred_start) == ("a", Moment(2024))


def test_standard_input_is_utf_8_on_any_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO('{"text": "Zoë"}'.encode()), encoding="cp1252"))
    assert load_memories("-")[0].text == "Zoë"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "Zo\xeb"}'), encoding="cp1252"))
    with pytest.raises(InputError, match="standard input"):
        load_memories("-")


def test_a_damaged_file_is_an_error(tmp_path):
    content = gzip.compress(b'{"text": "Ruby works at Aurora"}\n' * 400)
    (tmp_path / "m.jsonl.gz").write_bytes(content[:20] + b"\xff" * 20 + content[40:])
    with pytest.raises(InputError, match=r"m\.jsonl\.gz: "):
        load_memories(tmp_path / "m.jsonl.gz")
    with pytest.raises(InputError, match=r"m\.jsonl\.gz.*: "):
        list(read_json_lines(tmp_path / "m.jsonl.gz"))


def test_a_number_of_thousands_of_digits_is_an_error(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"text": "a"}\n{"text": "b", "n": ' + "1" * 5000 + "}\n")
    with pytest.raises(InputError, match=r"m\.jsonl:2: "):
        list(read_json_lines(tmp_path / "m.jsonl"))
