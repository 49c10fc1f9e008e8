"""Take the pictures of docs/look.md again: python benchmarks/screenshots.py (Chromium and Playwright are needed)."""

import sys
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

import cmdpkit as ck
from cmdpkit.insight.explorer.serve import serving
from cmdpkit.problems.places import places_of

ROOT = Path(__file__).parent.parent
HERE = ROOT / "docs/look"
sys.path.insert(0, str(ROOT / "tests"))

from browsing import FLAGS, NOT_RUN, find_chromium  # noqa: E402 - the tests' own way to a browser

NAME = "two_queues"


def main() -> None:
    program = find_chromium()
    if program is None:
        sys.exit(NOT_RUN)
    title = (ck.problems.CATALOGUE[NAME].__doc__ or "").splitlines()[0]
    cmdp = ck.problems.CATALOGUE[NAME]()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        path = Path(folder) / "report.html"
        settings = {"axes": places_of(NAME, {}), "title": NAME, "subtitle": title}
        ck.solve(cmdp).report(path, command=f"cmdpkit report {NAME}", **settings)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn=yes]")
        page.screenshot(path=HERE / "report.png", clip={"x": 0, "y": 0, "width": 1280, "height": 1700}, full_page=True)
        with serving(cmdp, NAME, {}, NAME, title, [NAME], time_limit=60.0) as (server, address):
            threading.Thread(target=server.serve_forever, daemon=True).start()
            page.goto(address)
            page.get_by_text("The optimum is proved to lie in the band").wait_for(timeout=60_000)
            page.click("#pin-A")
            page.wait_for_selector("#pins-table")
            page.wait_for_timeout(500)
            page.screenshot(
                path=HERE / "explorer.png", clip={"x": 0, "y": 0, "width": 1280, "height": 1200}, full_page=True
            )
            server.shutdown()
        browser.close()


if __name__ == "__main__":
    main()
