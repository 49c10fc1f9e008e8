"""A real browser for the tests that need one: a Chromium that is there, driven by Playwright."""

import contextlib
import os
import shutil
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip
NOT_RUN = "no Chromium was found: install one, or name it in the variable CHROMIUM"


def find_chromium():
    """The program of a Chromium, or None."""
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class Watched:
    """What went wrong on a page: messages of its console, and requests to anywhere but itself."""

    def __init__(self, page):
        self.page, self.trouble, self.outside = page, [], []
        page.on("console", lambda message: self.trouble.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("dialog", lambda dialog: (self.trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", self.note)

    def note(self, request):
        parts = urlsplit(request.url)
        if parts.scheme not in ("file", "data", "blob") and parts.hostname != "127.0.0.1":
            self.outside.append(request.url)


@contextlib.contextmanager
def watched_page(browser):
    """A page whose console must stay free of messages, and from which no request may leave."""
    found = browser.new_page(viewport={"width": 1280, "height": 900})
    found.set_default_timeout(60_000)
    watched = Watched(found)
    yield found
    found.close()
    assert not watched.trouble
    assert not watched.outside
