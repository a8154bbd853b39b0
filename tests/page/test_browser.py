"""The page in headless Chromium: links are clicked, and every view is drawn (`make test-page`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.page.test_page import MADE
from turbine.page import html
from turbine.page.explanation import Explanation
from turbine.page.stages import Line

pytestmark = pytest.mark.browser

sync_api: Any = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install turbine[browser]"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
PLACE = "/m/model.py"
VIEWS = ("code", "dispatches", "modules", "roofline", "memory", "fallbacks", "compare", "facts")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("browser") / "page.html"
    slower = replace(MADE, milliseconds=8.0)
    html.save(path, MADE, before=slower)
    return path.as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, which must neither fail nor ask for anything."""
    opened = browser.new_page(viewport={"width": 1400, "height": 800})
    troubles: list[str] = []
    opened.on("console", lambda message: troubles.append(message.text))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.on("request", lambda asked: troubles.append(asked.url))
    opened.goto(address)
    yield opened
    assert [one for one in troubles if one != address and not one.startswith(f"{address}#")] == []
    opened.close()


def selected(page: Any, pane: str) -> list[str]:
    """The highlighted lines of a pane."""
    found: list[str] = page.locator(f"#pane-{pane} .line.on .text").all_inner_texts()
    return found


def test_a_line_of_the_model_leads_to_what_it_became(page: Any) -> None:
    page.click(f'[data-place="{PLACE}:3"]')
    assert selected(page, "graph") == ["mm = f('</script><script>alert(1)//')"]
    assert selected(page, "ir") == ["%0 = torch.aten.mm"]
    assert selected(page, "dispatch") == ["main_dispatch_0_matmul"]
    assert page.inner_text("#dispatch-text") == "ret"
    assert page.inner_text("#selected-cost").startswith("1.5 ms, 75%")


def test_a_dispatch_leads_back_to_its_lines(page: Any) -> None:
    page.click('#pane-dispatch [data-dispatch="main_dispatch_0_matmul"]')
    assert selected(page, "source") == [
        "x = x @ w  # </script> & https://example.org",
        "x = x.relu()",
    ]
    assert len(selected(page, "graph")) == 2
    assert page.inner_text("#selected-cost").startswith("2 ms, 100%")
    page.click("#show-ir")
    assert page.inner_text("#dispatch-text") == "func"


def test_ops_lead_both_ways(page: Any) -> None:
    page.click('#pane-graph .line:has-text("relu")')
    assert selected(page, "source") == ["x = x.relu()"]
    assert selected(page, "dispatch") == ["main_dispatch_0_matmul"]
    page.click("#pane-ir .line.linked")
    assert selected(page, "source") == ["x = x @ w  # </script> & https://example.org"]


def test_escape_clears_the_selection(page: Any) -> None:
    page.click(f'[data-place="{PLACE}:3"]')
    page.keyboard.press("Escape")
    assert page.locator(".line.on").count() == 0
    assert page.is_hidden("#selection")


def test_search_finds_lines_in_every_view(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("relu")
    assert page.inner_text("#hits").endswith("matches")
    page.keyboard.press("Enter")
    assert page.inner_text("#hits").startswith("1 of ")
    assert page.locator(".now").is_visible()
    page.fill("#search", "nowhere to be found")
    assert page.inner_text("#hits") == "0 matches"
    page.fill("#search", "no lowering")
    page.keyboard.press("Enter")
    assert page.is_visible("#view-fallbacks")


def test_keys_change_views(page: Any) -> None:
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        assert [v for v in VIEWS if page.is_visible(f"#view-{v}")] == [view]


def test_charts_select(page: Any) -> None:
    page.click("#tab-roofline")
    page.click("circle.dot")
    assert page.locator("circle.dot.on").count() == 1
    page.click("#tab-modules")
    assert page.locator(".frame").all_inner_texts() == ["model 2.000", "fc 1.500"]
    page.click('.frame[data-module="fc"]')
    page.click("#tab-code")
    assert len(selected(page, "graph")) == 1
    page.click("#tab-memory")
    assert page.locator("path.area").count() == 1


def test_fallbacks_lead_to_their_line(page: Any) -> None:
    assert page.inner_text(f'[data-place="{PLACE}:4"] .tag') == "in PyTorch"
    page.click("#tab-fallbacks")
    page.click('#view-fallbacks tr:has-text("no lowering")')
    page.click("#tab-code")
    assert selected(page, "source") == ["x = x.relu()"]


def test_two_runs_are_compared(page: Any) -> None:
    page.click("#tab-compare")
    first = page.locator("#view-compare tbody tr").first.inner_text().split()
    assert first == ["call", "a", "<model>", "8", "4", "0.5"]


def test_columns_sort(page: Any) -> None:
    page.click("#tab-compare")
    page.click('#view-compare th:has-text("after")')
    cells = page.locator("#view-compare tbody td:nth-child(4)").all_inner_texts()
    assert cells == sorted(cells, key=float, reverse=True)


def test_an_address_selects(page: Any, address: str) -> None:
    page.goto(f"{address}#line/{PLACE}:4".replace("//m", "/%2Fm"))
    assert selected(page, "source") == ["x = x.relu()"]
    page.goto(f"{address}#dispatch/main_dispatch_0_matmul")
    assert selected(page, "dispatch") == ["main_dispatch_0_matmul"]
    page.goto(f"{address}#view/memory")
    assert page.is_visible("#view-memory")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_have_contrast(browser: Any, address: str, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.goto(address)
    colors = "getComputedStyle(document.body)"
    text, back = (page.evaluate(f"{colors}.{name}") for name in ("color", "backgroundColor"))
    page.close()
    assert abs(brightness(text) - brightness(back)) > 150
    assert (brightness(back) > 128) == (scheme == "light")


def brightness(color: str) -> float:
    parts = [float(part) for part in color.strip("rgba()").split(",")[:3]]
    return sum(parts) / 3


@pytest.mark.parametrize("made", [Explanation("empty"), replace(MADE, costs=(), peak=None)])
def test_what_is_not_known_is_said(browser: Any, tmp_path: Path, made: Explanation) -> None:
    html.save(tmp_path / "page.html", made)
    page = browser.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    for view in (view for view in VIEWS if view != "compare"):
        page.click(f"#tab-{view}")
        assert page.inner_text(f"#view-{view}").strip()
    page.close()
    assert troubles == []


def test_a_large_program_stays_usable(browser: Any, tmp_path: Path) -> None:
    many = tuple(Line(f"%{number} = torch.aten.mm", (0,)) for number in range(20_000))
    made = replace(MADE, stages=replace(MADE.stages, ir=many))
    html.save(tmp_path / "page.html", made)
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.click(f'[data-place="{PLACE}:3"]')
    assert page.locator("#pane-ir .line.on").count() == 20_000
    page.close()
