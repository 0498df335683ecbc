"""Learning: real feedback, a real training run started in the browser, promotion and rollback."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path

import pytest

from mnemorank.artifact.manifest import Manifest, write_manifest
from tests.console.conftest import find_violations
from tests.learning import simulation
from tests.learning.server import wait_until, write_settings
from tests.learning.test_simulation import SETTINGS, simulate_sessions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TOPICS = (
    "garden kitchen passport invoice dentist holiday bicycle apartment mortgage festival orchard library wedding "
    "insurance printer laptop server deployment database meeting budget contract interview recipe allergy vaccine "
    "marathon guitar piano painting camera telescope museum theater concert birthday cousin neighbor landlord plumber "
    "electrician carpet window heating solar battery charger router password backup ferry train airport hotel luggage "
    "visa currency pension salary warranty receipt parcel doctor pharmacy glasses"
).split()
ASPECTS = (
    "address budget date color size supplier deadline owner price status history plan problem repair version location "
    "contact schedule result notes photo list number reason cost choice brand length weight opening rule change risk "
    "offer review delivery access quality model time menu agenda summary fee discount target limit order source"
).split()


@pytest.fixture(scope="module")
def loop_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that knows nothing of what its users prefer, and the folder of a loop."""
    from mnemorank.export.exporter import export

    folder = tmp_path_factory.mktemp("learning")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "TOPICS", TOPICS)
        patch.setattr(simulation, "ASPECTS", ASPECTS)
        base = simulation.write_base(folder / "base")
        write_manifest(base, Manifest("tiny", family="torch", format="plain", max_length=48))
        export(base, folder / "model", quantize="int8")
        sets = simulation.write_sets(folder / "sets")
    return folder / "model", write_settings(folder / "loop", SETTINGS.format(**sets) + "max_ece_increase = 0.5\n")


def spread_over_days(database: Path) -> None:
    """Move the events to the last weeks, for a chart with more than one day."""
    with sqlite3.connect(database) as connection:
        ids = [row[0] for row in connection.execute("SELECT id FROM events ORDER BY time")]
        now = time.time()
        for number, event_id in enumerate(ids):
            days = 24 * (1 - number / len(ids)) ** 1.4
            connection.execute("UPDATE events SET time = ? WHERE id = ?", (now - 86_400 * days, event_id))


def test_a_candidate_is_trained_promoted_and_rolled_back(serve, loop_folder, open_page, screenshot, monkeypatch):
    model, root = loop_folder
    monkeypatch.setattr(simulation, "TOPICS", TOPICS)
    monkeypatch.setattr(simulation, "ASPECTS", ASPECTS)
    server = serve(model=str(model), learning=root, threads=1)
    rng = random.Random(11)
    users = [simulation.User(f"user{i}", random.Random(i)) for i in range(25)]
    simulate_sessions(server.client, users, rng, 220)
    for query in simulation.sample_queries(rng, 6):
        body = {"query": query, "memories": ["vague red wordy"] * 1, "options": {"abstain_below": 1.0}}
        assert server.client.post("/v1/memories/rerank", json=body).json()["abstained"]
    spread_over_days(root / "events.db")

    page = open_page(f"{server.url}/console#learning")
    page.get_by_text("No run yet").wait_for()
    page.get_by_role("button", name="Mine examples").click()
    page.get_by_role("status").filter(has_text="examples mined").wait_for()
    page.get_by_role("button", name="Train a candidate").click()
    page.get_by_role("button", name="Start training").click()
    page.locator(".run-list .badge").filter(has_text="done").wait_for(timeout=600_000)
    page.get_by_role("img", name="Training loss by step").wait_for()
    page.get_by_role("heading", name="Gate: 0002 against 0001").wait_for()
    page.locator(".interval").first.wait_for()
    page.set_viewport_size({"width": 1440, "height": 1560})
    page.wait_for_timeout(300)
    screenshot(page, "learning")
    assert find_violations(page) == []

    page.get_by_role("button", name="Promote 0002").click()
    assert "0001" in server.app.state.slot.current.source, "nothing happens before the confirmation"
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Why").fill("better on feedback")
    if dialog.get_by_role("checkbox").count():  # the gate decides by what it measured on this machine
        dialog.get_by_role("button", name="Promote").click()
        dialog.get_by_role("alert").filter(has_text="gate").wait_for()
        dialog.get_by_role("checkbox").check()
    dialog.get_by_role("button", name="Promote").click()
    page.locator("tr.current").filter(has_text="0002").wait_for()
    wait_until(lambda: "0002" in server.app.state.slot.current.source)
    page.get_by_role("button", name="Roll back to 0001").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    page.locator("tr.current").filter(has_text="0001").wait_for()
    wait_until(lambda: "0001" in server.app.state.slot.current.source)
    promotion, rollback = server.app.state.learning.loop.versions.history.entries()[-2:]
    assert (promotion["action"], promotion["version"]) == ("promote", "0002")
    assert promotion["why"].startswith("better on feedback")
    assert (rollback["action"], rollback["version"]) == ("rollback", "0001")
