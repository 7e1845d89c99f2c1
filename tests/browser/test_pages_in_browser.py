"""Pages in a real browser: they load without a complaint and without asking anybody, and what can be pressed works."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

from modelhound.report import live
from modelhound.report.page import render_page
from modelhound.report.pages import build_page
from modelhound.store import RunFolder, read_run
from report_runs import ODD_NAMES, append_all, measure, write_search
from verb_runs import write_verb_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on the PATH: on Debian, apt-get install chromium brings it"
)

WIDTHS = (390, 820, 1280)
RENDERED = "[...document.querySelectorAll('figure[data-chart]')].every(it => it.dataset.drawn || !it.clientWidth)"


def wait_until(page: "Page", expression: str) -> None:
    """Playwright's own waiting evaluates text inside the page, which the page forbids itself."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never came true: {expression}")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


class Eyes:
    """Opens pages and hears what they complain of and whom they ask."""

    def __init__(self, browser: "Browser") -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __call__(self, address: str, *, width: int = 1280, scheme: Any = "light") -> "Page":
        context = self._browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self._contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)
        wait_until(page, RENDERED)
        return page

    def check(self) -> None:
        """Nothing may have complained, and nothing may have been asked for elsewhere."""
        assert self.complaints == []
        here = ("file:", "data:", "blob:", "http://127.0.0.1:")
        assert [each for each in self.requests if not each.startswith(here)] == []

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def look(browser: "Browser") -> Iterator[Eyes]:
    eyes = Eyes(browser)
    yield eyes
    eyes.close()
    eyes.check()


@pytest.fixture(scope="module")
def seen_once(browser: "Browser", pages: dict[str, str]) -> "Iterator[tuple[Eyes, Page]]":
    eyes = Eyes(browser)
    yield eyes, eyes(pages["usual"])
    eyes.close()


@pytest.fixture
def usual(seen_once: "tuple[Eyes, Page]") -> "Iterator[Page]":
    """A page with everything on it, opened once; tests leave it as they found it."""
    eyes, page = seen_once
    yield page
    eyes.check()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages of all kinds."""
    folder = tmp_path_factory.mktemp("pages")
    odd = [*ODD_NAMES, *(f"zoo:m{place}" for place in range(30))]
    runs = {
        "usual": [write_search(folder / "usual", odd, failures=ODD_NAMES, num_dropped=9, views=True)],
        "one model": [write_search(folder / "single", ["zoo:only"])],
        "no success": [write_search(folder / "failed", [], failures=("zoo:a",))],
        "large": [write_search(folder / "large", [f"timm:m{place}" for place in range(1600)])],
    }
    runs |= {verb: [path] for verb, path in write_verb_runs(folder / "verbs").items()}
    runs["compared"] = [runs["usual"][0], write_search(folder / "other", odd[:12], seed=2)]
    addresses = {}
    for name, paths in runs.items():
        file = folder / f"{name.replace(' ', '-')}.html"
        file.write_text(render_page(build_page([read_run(path) for path in paths]), sources="a test"), encoding="utf-8")
        addresses[name] = file.as_uri()
    return addresses


def test_no_legend_is_cut_on_a_narrow_page(pages: dict[str, str], look: Eyes, tmp_path: Path) -> None:
    longer = Path(pages["train"].removeprefix("file://")).read_text().replace("timm:x", f"timm:{30 * 'x'}")
    (tmp_path / "page.html").write_text(longer)
    page = look((tmp_path / "page.html").as_uri(), width=390)
    cut = (
        "[...document.querySelectorAll('.canvas')].filter(box => [...box.querySelectorAll('.role-legend')].some(it => "
    )
    cut += "it.getBoundingClientRect().right > box.getBoundingClientRect().right + 2)).length"
    assert page.evaluate(cut) == 0


@pytest.mark.parametrize("name", ["one model", "no success", "compared"])
def test_every_page_loads_without_a_complaint_or_a_request(name: str, pages: dict[str, str], look: Eyes) -> None:
    page = look(pages[name])
    assert page.locator("h1").inner_text()
    charts = page.locator("figure[data-chart]").count()
    assert page.locator(".canvas svg.marks, .canvas canvas.marks").count() == charts
    assert (charts > 0) == (name != "no success")


@pytest.mark.parametrize("verb", ["breakeven", "latency", "loader", "profile", "train"])
def test_the_page_of_a_verb_fits_a_phone_and_its_charts_are_drawn_without_a_complaint(
    verb: str, pages: dict[str, str], look: Eyes
) -> None:
    page = look(pages[verb], width=390)
    assert page.locator(".next code").first.inner_text().startswith("hound ")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".figures .value").count() == 4
    charts = page.locator("figure[data-chart]").count()
    assert page.locator(".canvas svg.marks").count() == charts > 1
    if verb == "breakeven":  # panels side by side stand one below the other here
        assert page.locator("#charts svg.marks").first.bounding_box()["width"] <= 390  # type: ignore[index]


def test_panels_fill_the_page_and_follow_its_width(pages: dict[str, str], look: Eyes) -> None:
    page = look(pages["profile"])
    panels = page.locator("figure[data-chart]", has_text="Where the time goes").locator("svg.marks").first
    room = page.locator("#charts .canvas").first
    for width in (1280, 700):
        page.set_viewport_size({"width": width, "height": 800})
        wait_until(page, "document.querySelector('#charts svg.marks').getBoundingClientRect().right <= innerWidth")
        box, outer = panels.bounding_box(), room.bounding_box()
        assert box is not None
        assert outer is not None
        assert 0.55 * outer["width"] < box["width"] <= outer["width"] + 1


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_every_width_and_its_answer_is_seen_without_scrolling(
    width: int, pages: dict[str, str], look: Eyes, tmp_path: Path
) -> None:
    page = look(pages["usual"], width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1").bounding_box()["y"] < 300  # type: ignore[index]
    if width == 1280:
        box = page.locator(".figures").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 800
    picture = tmp_path / f"{width}.png"
    page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 50_000


def test_a_press_on_a_column_sorts_and_says_so(usual: "Page") -> None:
    page = usual
    table = page.locator("#ranking table")
    head = table.locator("thead th", has_text="params")
    sizes = "[...document.querySelectorAll('#ranking tbody tr')].map(row => Number(row.cells[{}].dataset.v))"
    place = head.evaluate("head => head.cellIndex")
    best = table.locator("tbody th").first.inner_text()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    values = page.evaluate(sizes.format(place))
    assert values == sorted(values, reverse=True)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    smallest = page.evaluate(sizes.format(place))
    assert smallest == sorted(smallest)
    assert smallest[0] < min(values)  # of all rows, not of those that were shown before
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") is None
    assert table.locator("tbody th").first.inner_text() == best


def test_a_filter_keeps_rows_that_hold_all_words(pages: dict[str, str], look: Eyes) -> None:
    page = look(pages["large"])
    assert page.locator("figure canvas.marks").count() == 2  # too many dots for a tree of shapes
    assert page.locator("#ranking tbody tr").count() == 25  # and those that are not seen are not there
    rows = page.locator("#ranking tbody tr:visible")
    assert rows.count() == 25
    page.get_by_label("Filter").first.fill("timm m1599")
    assert rows.count() == 1
    assert page.locator("#ranking .count").inner_text() == "1 of 1600 rows fit"
    page.get_by_label("Filter").first.fill("")
    page.get_by_role("button", name="Show 1000 more rows").click()
    assert rows.count() == 1025
    assert page.get_by_role("button", name="Show all 1600 rows").count() == 1


def test_a_dot_has_a_tooltip_with_its_model(usual: "Page") -> None:
    page = usual
    drawing = page.locator("figure[data-chart]", has=page.locator("h3", has_text="against size")).first
    drawing.scroll_into_view_if_needed()
    drawing.locator("path[aria-roledescription='circle']").first.hover(force=True)
    tooltip = page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert "parameters" in tooltip.inner_text()
    assert "rank" in tooltip.inner_text()


def test_data_of_a_chart_can_be_read_as_a_table(usual: "Page") -> None:
    page = usual
    button = page.locator("#ranking [data-do=data]")
    button.click()
    assert button.get_attribute("aria-expanded") == "true"
    assert page.locator("#ranking figure table tbody tr:visible").count() == 12
    button.click()
    assert page.locator("#ranking figure table").count() == 0


@pytest.mark.parametrize("format", ["svg", "png"])
def test_a_chart_can_be_taken_along(format: str, usual: "Page") -> None:
    page = usual
    with page.expect_download() as download:
        page.locator(f"#ranking [data-do={format}]").click()
    assert download.value.suggested_filename == f"search_ranking.{format}"
    content = download.value.path().read_bytes()
    assert content.startswith(b"\x89PNG" if format == "png" else b"<svg")


def test_dark_and_light_follow_the_system_until_told(pages: dict[str, str], look: Eyes) -> None:
    page = look(pages["one model"], scheme="dark")
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(colour)
    assert dark == "rgb(18, 21, 27)"
    button = page.get_by_role("button", name="Theme")
    button.click()
    assert button.inner_text() == "Theme: light"
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    wait_until(page, "document.querySelector('figure svg').outerHTML.includes('#3350d7')")
    button.click()
    assert page.evaluate(colour) == dark
    wait_until(page, "document.querySelector('figure svg').outerHTML.includes('#7281ff')")
    page.emulate_media(media="print")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"


def test_odd_names_are_shown_as_they_are(usual: "Page") -> None:
    page = usual
    shown = page.locator("#ranking tbody th").all_inner_texts()
    assert set(ODD_NAMES) <= set(shown)
    assert page.evaluate("document.querySelectorAll('main b').length") == 0


def test_everything_has_a_name_for_a_screen_reader(usual: "Page") -> None:
    page = usual
    nameless = page.evaluate(
        """() => [
          ...[...document.querySelectorAll('button:not([hidden])')].filter(it => !(it.textContent.trim() || it.ariaLabel)),
          ...[...document.querySelectorAll('input')].filter(it => !it.labels.length),
          ...[...document.querySelectorAll('img')].filter(it => !it.alt),
          ...[...document.querySelectorAll('main table')].filter(it => !it.caption),
          ...[...document.querySelectorAll('figure[data-drawn] svg.marks')].filter(it => !it.closest('[aria-label]')),
          ...[...document.querySelectorAll('section')].filter(it => !(it.ariaLabel || it.getAttribute('aria-labelledby'))),
        ].map(it => it.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(it => Number(it.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.evaluate("document.querySelector('a, button, input, [tabindex]').textContent") == "Skip to the answer"


def test_a_folded_run_shows_its_charts_when_it_is_opened(pages: dict[str, str], look: Eyes) -> None:
    page = look(pages["compared"])
    chart = page.locator("#run-1 figure[data-chart]").first
    assert not chart.is_visible()
    page.locator("#run-1 summary").first.click()
    wait_until(page, RENDERED)
    assert chart.locator("svg.marks").bounding_box()["width"] > 600  # type: ignore[index]


def test_a_live_page_changes_by_itself_and_keeps_its_filter(
    look: Eyes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_LEAST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(live, "_LARGEST_SHARE", 1e9)
    path = write_search(tmp_path / "run", [], finish=False)
    with live.serve_live(path) as served:
        page = look(served.address)
        assert page.locator("figure[data-chart]").count() == 0  # the charts come with the first model
        numbers = numpy.random.default_rng(0)
        append_all(RunFolder(path), [measure(f"zoo:m{place}", place, 12, 120, numbers) for place in range(12)])
        wait_until(page, "document.querySelector('#ranking tbody')?.textContent.includes('zoo:m11')")
        page.get_by_label("Filter").first.fill("m3")
        append_all(RunFolder(path), [measure("zoo:m333", 11, 12, 120, numpy.random.default_rng(1))])
        wait_until(page, "document.querySelector('#ranking tbody').textContent.includes('zoo:m333')")
        assert page.locator("#ranking tbody tr:visible").count() == 2
        assert page.get_by_label("Filter").first.input_value() == "m3"
        wait_until(page, RENDERED)
