import pytest


@pytest.fixture
def memories(tmp_path):
    path = tmp_path / "memories.jsonl"
    path.write_text(
        '{"text": "the cat"}\n'
        '{"text": "ruby work at aurora", "occurred_start": "2024-03"}\n'
        '{"text": "a dog", "id": 3}\n'
    )
    return str(path)


@pytest.fixture(autouse=True)
def terminal_width(monkeypatch):
    # pytest-xdist sets COLUMNS to the width of the terminal that started it.
    monkeypatch.setenv("COLUMNS", "110")
