"""The site: built without warnings, links and anchors lead somewhere, nothing comes from outside; notebooks run."""

import contextlib
import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("index", "start", "concepts", "cookbook", "theory", "results", "comparing", "tools", "changelog", "methods")
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built in strict mode, as `make docs` does; warnings of any kind fail."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    heard = []

    class Listener(logging.Handler):
        def emit(self, record):
            heard.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logging.getLogger("mkdocs").addHandler(listener)
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    finally:
        logging.getLogger("mkdocs").removeHandler(listener)
    assert not heard
    return folder


class Page(HTMLParser):
    """What a page links to, what it loads, and where one can link to in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors, self.tags = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        if found.get("id"):
            self.anchors.add(found["id"])
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif found.get("href") and found.get("rel") != "canonical":
            self.loads.append(found["href"])
        if found.get("src"):
            self.loads.append(found["src"])


@pytest.fixture(scope="session")
def pages(site):
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_every_link_leads_somewhere(pages):
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].anchors if target in pages else {parts.fragment}
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in known):
                broken.append((path.name, link))
    assert not broken
    assert sum(len(page.links) for page in pages.values()) > 1_000


def test_nothing_is_loaded_from_outside(site, pages):
    for path, page in pages.items():
        assert not [link for link in page.loads if urlsplit(link).scheme or link.startswith("//")], path
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", path.read_text("utf-8")), path


def test_every_page_is_there(pages):
    names = {path.stem for path in pages}
    assert {*PAGES, "contributing", "solving", "model", "simulator", "environment"} <= names


def test_mathematics_is_rendered(site, pages):
    for name, least in (("theory", 25), ("concepts", 8)):
        assert pages[site / f"{name}.html"].tags.count("math") >= least
        text = (site / f"{name}.html").read_text("utf-8")
        assert "arithmatex" not in text
        assert not re.search(r"\\(?:lambda|frac|sum|pi|gamma)\b", text)


def test_stars_and_indices_of_formulas_are_no_emphasis(site):
    text = (site / "theory.html").read_text("utf-8")
    body = re.sub(
        r"<(pre|code|math).*?</\1>", "", text[text.index("<article") : text.index("</article")], flags=re.DOTALL
    )
    assert body.count("<sub>") > 300
    for emphasised in re.findall(r"<em>(.*?)</em>", body, re.DOTALL):
        assert re.match(r"[A-Za-z]", emphasised)  # words, and not what stands between two stars
        assert not re.match(r"[,.)]", emphasised)
    assert "saddle point (x&#42;, λ&#42;)" in body or "saddle point (x*, λ*)" in body


def test_the_reference_says_what_the_docstrings_say(site):
    texts = [(site / f"reference/{name}.html").read_text("utf-8") for name in ("solving", "insight")]
    solving, insight = (re.sub(r"<[^>]+>", "", text) for text in texts)
    assert "Solve a constrained MDP and certify the result." in solving
    assert "max_iterations" in solving
    assert "Run several methods on the same models and rank them." in insight


# -- the documents themselves, as they are read in the repository ------------------------------------------------------


def documents():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors_of(text):
    """The anchors of the headings, as GitHub makes them."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents(path):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (path.parent / parts.path).resolve() if parts.path else path
        assert target.exists(), link
        if parts.fragment:
            assert parts.fragment in anchors_of(target.read_text("utf-8")), link


# -- notebooks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    """Every cell in a fresh kernel; what was printed when the notebook was stored is printed again."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = nbformat.read(path, as_version=4)
    stored = [printed(cell) for cell in notebook.cells]
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert [printed(cell) for cell in notebook.cells] == stored
    assert path.stat().st_size < 20_000


def printed(cell):
    return "".join(output.get("text", "") for output in cell.get("outputs", ()))


def test_there_is_a_notebook_for_every_way_in():
    assert [path.stem for path in NOTEBOOKS] == ["environment", "model", "simulator"]


# -- in a real browser -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(site):
    """The site on the loopback address: search needs more than files."""
    import functools
    import http.server
    import threading

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_in_a_browser(page, served, width):
    """Nothing wider than the window; the fixture checks that the console is empty and nothing comes from elsewhere."""
    page.set_viewport_size({"width": width, "height": 900})
    for name in (*PAGES, "reference/solving", "notebooks/model"):
        page.goto(f"{served}/{name}.html")
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        broken = "Array.from(document.images).filter(i => i.complete && !i.naturalWidth).length"
        assert page.evaluate(broken) == 0


def test_mathematics_is_laid_out(page, served):
    """A fraction is a fraction: its numerator stands above its denominator."""
    page.goto(f"{served}/theory.html")
    boxes = page.evaluate(
        "Array.from(document.querySelectorAll('mfrac')).map(f => Array.from(f.children).map(c => {"
        "const b = c.getBoundingClientRect(); return [b.top, b.bottom, b.height]}))"
    )
    assert len(boxes) > 10
    for (_, bottom, height), (top, _, _) in boxes:
        assert height > 0
        assert bottom <= top + 2


def test_search_finds_pages(page, served):
    from playwright.sync_api import TimeoutError

    page.goto(f"{served}/index.html")
    box, first = page.locator("input.md-search__input"), page.locator(".md-search-result__item a").first
    for _ in range(20):  # what is typed before the index has been read is not searched for
        box.fill("")
        box.press_sequentially("shadow price")
        with contextlib.suppress(TimeoutError):
            first.wait_for(timeout=3_000)
            break
    assert "shadow" in page.locator(".md-search-result__list").inner_text().lower()


def test_files_open_without_a_server(page, site):
    page.goto(f"file://{site}/concepts.html")
    page.get_by_role("link", name="Criteria", exact=True).first.click()
    assert page.locator("h1").inner_text().startswith("Criteria")
