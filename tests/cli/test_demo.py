"""`mnemorank demo`."""

from mnemorank.cli import main


def test_answers_its_questions(capsys):
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "Aurora Labs" in out.split("Where does Ruby work now?")[1].splitlines()[1]


def test_answers_another_query(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["demo", "--query", "where does Ruby work now?"]) == 0
    assert "Ruby leads the memory" in capsys.readouterr().out
