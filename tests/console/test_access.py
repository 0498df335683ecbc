"""Keys: the page asks for one, keeps it in the tab, and shows what its scopes allow."""

from __future__ import annotations

import pytest

from mnemorank.server.auth import add_key
from tests.console.conftest import find_violations

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    return path, add_key(path, "reader", ["read"]), add_key(path, "owner", ["read", "feedback", "admin"])


def test_a_key_is_required_when_keys_are_set(serve, keys, open_page):
    path, reader, _ = keys
    server = serve(keys=path, learning=path.parent / "loop")
    page = open_page(f"{server.url}/console")
    field = page.get_by_label("Key")
    field.wait_for()
    assert page.locator(".slot").count() == 0
    assert find_violations(page) == []
    field.fill("mnk_wrong")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("alert").filter(has_text="not valid").wait_for()
    field.fill(reader)
    page.get_by_role("button", name="Continue").click()
    page.locator(".column.right .slot").first.wait_for()
    stored = page.evaluate(
        "[Object.values(sessionStorage), Object.values(localStorage), location.href, document.cookie]"
    )
    assert reader in stored[0]
    assert reader not in str(stored[1:]), "the key is nowhere but in this tab"
    page.reload()
    page.locator(".column.right .slot").first.wait_for()
    page.get_by_role("link", name="Learning").click()
    page.get_by_text("Learning needs an admin key").wait_for()
    page.get_by_role("link", name="Judge").click()
    page.get_by_text("lacks the scope").wait_for()
    page.get_by_role("button", name="Forget key").click()
    page.get_by_label("Key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
