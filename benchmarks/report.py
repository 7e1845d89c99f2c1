"""How long the page of a search takes to write and to open, and how large it is, by the number of models.

    python benchmarks/report.py [--models 100 2000 5000] [--open] [--json]

The searches never ran: their records are made up, with a plan, a timeline and a map of 120 items. Writing is the whole command,
`hound report RUN`, from its start to its end. With --open, chromium opens the page (playwright drives it, as the tests do).
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from modelhound.meter import describe_machine, seconds_now
from modelhound.records import to_plain

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

REPEATS = 3
DRAWN = "[...document.querySelectorAll('figure[data-chart]')].every(it => it.dataset.drawn || !it.clientWidth)"


def measure(folder: Path, num_models: int, *, opens: bool) -> dict[str, Any]:
    from report_runs import write_search

    names = [f"timm:a_model_with_a_name_of_usual_length_{place}" for place in range(num_models)]
    run = write_search(folder / str(num_models), names, views=True)
    page = folder / f"{num_models}.html"
    writing = []
    for _ in range(1 + REPEATS):
        started = seconds_now()
        command = [sys.executable, "-m", "modelhound", "report", str(run), "--out", str(page)]
        subprocess.run(command, check=True, capture_output=True)
        writing.append(seconds_now() - started)
    found = {"num_models": num_models, "write_seconds": writing[1:], "num_bytes": page.stat().st_size}
    return {**found, **(open_page(page) if opens else {})}


def open_page(page_file: Path) -> dict[str, float]:
    """Until it can be read, and until the last chart is drawn."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        started = seconds_now()
        page.goto(page_file.as_uri())
        loaded = seconds_now() - started
        while not page.evaluate(DRAWN):
            page.wait_for_timeout(20)
        drawn = seconds_now() - started
        browser.close()
    return {"open_seconds": loaded, "drawn_seconds": drawn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, nargs="+", default=[100, 2000, 5000])
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(Path(folder), count, opens=asked.open) for count in asked.models]
    if asked.json:
        print(json.dumps({"rows": rows, "machine": to_plain(describe_machine())}))
        return
    for row in rows:
        opening = f", open {row['open_seconds']:.1f} s, drawn {row['drawn_seconds']:.1f} s" if asked.open else ""
        writing = ", ".join(f"{each:.1f}" for each in row["write_seconds"])
        print(f"{row['num_models']} models: written in {writing} s, {row['num_bytes'] / 1e6:.2f} MB{opening}")


if __name__ == "__main__":
    main()
