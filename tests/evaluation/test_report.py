"""The report works offline and in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mnemorank.data.benchmarks import loaders
from mnemorank.evaluation.benchmark import run_benchmark
from mnemorank.evaluation.report import write_report
from mnemorank.evaluation.summary import summarize
from mnemorank.evaluation.systems import load_system
from tests.conftest import write_overlap_model

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=5000"
).split()
HOSTILE = "</script><script>document.title='taken over'</script><img src=x onerror=\"document.title='taken over'\">"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report on three systems; texts and kinds of questions try to inject markup."""
    path = tmp_path / "hostile.jsonl"
    with path.open("w") as stream:
        for number in range(30):
            texts = [f"ruby works at aurora labs {number}", f"the dog {HOSTILE}", "ruby was in berlin before that"]
            candidates = [{"text": text, "label": float(i == number % 3)} for i, text in enumerate(texts)]
            record = {"query": f"where does ruby work {HOSTILE} {number}", "kind": f"kind <{number % 2}>"}
            stream.write(json.dumps({**record, "candidates": candidates}) + "\n")
    model = write_overlap_model(tmp_path / "overlap", max_length=512)
    systems = [load_system(name) for name in (str(model), "bm25", "random")]
    benchmark_run = run_benchmark(loaders["lists"], path, systems)
    write_report(benchmark_run, summarize(benchmark_run), tmp_path / "report.html")
    return tmp_path / "report.html"


def test_the_page_makes_no_requests(report):
    page = report.read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?!data:)\w+:""", page.replace(HOSTILE, ""))
    assert "@import" not in page
    assert not re.search(r"url\(", page)


def test_the_page_has_its_sections(report):
    page = report.read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Summary",
        "overlap compared with the others",
        "By kind of question",
        "Quality and latency",
        "Reliability",
        "Scores of relevant and irrelevant memories",
        "Failures",
    ]
    assert page.count("<script") == 2


def test_a_lone_surrogate_is_replaced(tmp_path):
    record = {"query": "who is \ud800?", "candidates": [{"text": "a cat", "label": 1}, {"text": "a dog", "label": 0}]}
    (tmp_path / "l.jsonl").write_text(json.dumps(record))
    benchmark_run = run_benchmark(loaders["lists"], tmp_path / "l.jsonl", [load_system("bm25")])
    write_report(benchmark_run, summarize(benchmark_run), tmp_path / "report.html")
    assert "<h2>Summary</h2>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def browse(page: Path, profile: Path) -> str:
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", f"file://{page}"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "<html" in done.stdout, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_works_in_a_browser(report, tmp_path):
    """A script appended to a copy of the page clicks, types and records what it sees."""
    driver = """
    <script>
    const seen = {};
    const count = () => document.getElementById("count").textContent;
    const pick = (id, value) => {
      const field = document.getElementById(id);
      field.value = value;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    };
    seen.first = count();
    pick("model", "");
    seen.all = count();
    seen.cards = document.querySelectorAll("#failures article").length;
    document.getElementById("more").click();
    seen.moreCards = document.querySelectorAll("#failures article").length;
    pick("kind", "kind <1>");
    seen.oneKind = count();
    pick("search", "no such words");
    seen.none = count();
    const charts = [...document.querySelectorAll(".kind")];
    const visible = () => charts.filter((chart) => !chart.hidden).map((chart) => chart.dataset.measure);
    seen.before = visible();
    document.querySelector('#measures button[data-measure="hit@1"]').click();
    seen.after = visible();
    seen.title = document.title;
    seen.images = document.querySelectorAll("img").length;
    seen.overflow = document.documentElement.scrollWidth > document.documentElement.clientWidth;
    const note = Object.assign(document.createElement("pre"), { id: "seen", textContent: JSON.stringify(seen) });
    document.body.append(note);
    </script>
    """
    copy = tmp_path / "driven.html"
    copy.write_text(report.read_text(encoding="utf-8").replace("</body>", driver + "</body>"), encoding="utf-8")
    dom = browse(copy, tmp_path / "profile")
    seen = json.loads(re.search(r'<pre id="seen">(.*?)</pre>', dom).group(1).replace("&lt;", "<").replace("&gt;", ">"))
    number = {key: int(seen[key].split()[0]) for key in ("first", "all", "oneKind", "none")}
    assert 0 < number["first"] < number["all"]
    assert seen["cards"] == min(25, number["all"])
    assert seen["moreCards"] == min(50, number["all"])
    assert 0 < number["oneKind"] < number["all"]
    assert number["none"] == 0
    assert (seen["before"], seen["after"]) == (["map"], ["hit@1"])
    assert seen["title"] == "lists · mnemorank bench"
    assert seen["images"] == 0
    assert not seen["overflow"]
