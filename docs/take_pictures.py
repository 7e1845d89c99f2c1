"""Take the pictures of a report that the README shows: python docs/take_pictures.py PAGE.html

Needs chromium on the PATH and playwright, as the browser tests do. Pictures go to docs/pictures/: the first screen in light
and in dark, the same on a phone, and single parts of the page.
"""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parent / "pictures"
RENDERED = "[...document.querySelectorAll('figure[data-chart]')].every(it => it.dataset.drawn || !it.clientWidth)"
SCREENS = (
    ("report-light", 1280, 800, "light"),
    ("report-dark", 1280, 800, "dark"),
    ("report-phone", 390, 844, "light"),
)
PARTS = ("ranking", "trade-offs", "time", "items")


def main(page_file: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("cannot take pictures: expected chromium on the PATH")
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, width, height, scheme in SCREENS:
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=scheme,  # type: ignore[arg-type]
                device_scale_factor=1.5,
            )
            page.goto(page_file.resolve().as_uri())
            wait(page)
            page.screenshot(path=PICTURES / f"{name}.png")
            if name == "report-light":
                take_parts(page)
            page.close()
        browser.close()
    for path in PICTURES.glob("report-*.png"):
        with Image.open(path) as picture:
            few = picture.convert("RGB").quantize(200, dither=Image.Dither.NONE)  # a page has few colours
        few.save(path, optimize=True)


def wait(page: Page) -> None:
    while not page.evaluate(RENDERED):
        page.wait_for_timeout(50)


def take_parts(page: Page) -> None:
    for part in PARTS:
        found = page.locator(f"section#{part} figure, section#{part} .pair").first
        if found.count():
            found.screenshot(path=PICTURES / f"report-{part}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
