"""Take the pictures of a report that the README shows: python docs/take_pictures.py PAGE.html

Needs chromium on the PATH and playwright, as the browser tests do. Pictures go to docs/pictures/: the first screen and those
parts of the page that the README shows, each in light and in dark.
"""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

PICTURES = Path(__file__).parent / "pictures"
RENDERED = "[...document.querySelectorAll('figure[data-chart]')].every(it => it.dataset.drawn || !it.clientWidth)"
WIDTH, HEIGHT = 1280, 720
PARTS = ("trade-offs", "items")
HARDEST = 14  # pictures of items: two rows
MARGIN = 16  # pixels around a part


def main(page_file: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("cannot take pictures: expected chromium on the PATH")
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                color_scheme=scheme,
                device_scale_factor=1.5,
            )
            page.goto(page_file.resolve().as_uri())
            wait(page)
            page.screenshot(path=PICTURES / f"report-screen-{scheme}.png")
            take_parts(page, scheme)
            page.close()
        browser.close()
    for path in PICTURES.glob("report-*.png"):
        with Image.open(path) as picture:
            few = picture.convert("RGB").quantize(200, dither=Image.Dither.NONE)  # a page has few colours
        few.save(path, optimize=True)


def wait(page: Page) -> None:
    while not page.evaluate(RENDERED):
        page.wait_for_timeout(50)


def take_parts(page: Page, scheme: str) -> None:
    """The first figure of a part; of the items also some of those that are hardest."""
    for part in PARTS:
        found = page.locator(f"section#{part} figure.chart, section#{part} .pair").first
        if found.count():
            take_one(page, found, f"report-{part}-{scheme}")
    hardest = page.locator("section#items .gallery").first
    page.evaluate(f"document.querySelectorAll('.gallery li:nth-child(n+{HARDEST + 1})').forEach(it => it.remove())")
    if hardest.count():
        take_one(page, hardest, f"report-hardest-{scheme}")


def take_one(page: Page, found: Locator, name: str) -> None:
    """With some room around it, as it has on the page."""
    found.scroll_into_view_if_needed()
    page.evaluate("document.querySelectorAll('.tools').forEach(it => { it.style.visibility = 'hidden'; })")
    box = found.evaluate(
        "it => { const b = it.getBoundingClientRect(); return [b.x + scrollX, b.y + scrollY, b.width, b.height]; }"
    )
    x, y, width, height = box
    clip = {"x": x - MARGIN, "y": y - MARGIN, "width": width + 2 * MARGIN, "height": height + 2 * MARGIN}
    page.screenshot(path=PICTURES / f"{name}.png", clip=clip, full_page=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
