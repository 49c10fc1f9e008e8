"""One self-contained HTML page: sections, tables and figures, with everything it needs inside.

Plotly's library is nearly 5 MB. It is embedded compressed, at the end of the page, and inflated by the browser after
the text is on screen. The page declares that it may load nothing from anywhere.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cmdpkit.insight.figures import Figure

MISSING = "a report needs plotly: pip install 'cmdpkit[look]'"

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)
"""The page's own content security policy: what is in it may run, and nothing may be fetched or sent."""


class Page:
    """A page that is put together section by section. Arguments called `html` are trusted, all others are escaped."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title, self.subtitle = title, subtitle
        self.sections: list[tuple[str, str, str]] = []  # (id, title, html)
        self.figures: list[dict[str, Any]] = []
        self.data: dict[str, Any] = {}
        self.banner = ""

    def add(self, name: str, title: str, *html: str) -> None:
        self.sections.append((name, title, "".join(html)))

    def figure(self, figure: Figure, about: str, stages: Sequence[Figure] = ()) -> str:
        """The place of a figure, which is drawn when the page is shown; `stages` replace it as the slider moves."""
        name = f"figure-{len(self.figures)}"
        self.figures.append({"id": name, "figure": figure, "stages": list(stages)})
        height = int(figure["layout"].get("height", 400))
        what = escape(about)
        return (
            f'<figure><div class="plot" id="{name}" style="height:{height}px" role="img" aria-label="{what}">'
            f"</div><figcaption>{what}</figcaption></figure>"
        )

    def render(self) -> bytes:
        """The page as UTF-8."""
        links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in self.sections)
        body = "".join(
            f'<section id="{name}"><h2>{escape(title)}</h2>{html}</section>' for name, title, html in self.sections
        )
        subtitle = f'<p class="subtitle">{escape(self.subtitle)}</p>' if self.subtitle else ""
        plotly = f'<script type="text/plain" id="plotly">{compressed_plotly()}</script>' if self.figures else ""
        head = f'<header><div class="wrap"><p class="brand">cmdpkit report</p><h1>{escape(self.title)}</h1>'
        parts = [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">',
            f"<title>{escape(self.title)}</title><style>{asset('report.css')}</style></head><body>",
            f"{head}{subtitle}{self.banner}</div></header>",
            f'<nav aria-label="Sections"><div class="wrap">{links}</div></nav>',
            f'<main class="wrap"><noscript><p class="note">Figures and the table of the policy need JavaScript.'
            f"</p></noscript>{body}</main>",
            embedded("data", self.data),
            embedded("figures", self.figures),
            f"<script>{asset('report.js')}</script>{plotly}",
            "</body></html>\n",
        ]
        return "".join(parts).encode()


def asset(name: str) -> str:
    """A file that lies beside this one."""
    return (files(__package__) / name).read_text(encoding="utf-8")


@cache
def compressed_plotly() -> str:
    """Plotly's library, compressed, as base64."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise ImportError(MISSING)
    code = (Path(next(iter(found.submodule_search_locations))) / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(code, 9, mtime=0)).decode()


def check_plotly() -> None:
    """Say before a long computation that Plotly is missing."""
    if find_spec("plotly") is None:
        raise ImportError(MISSING)


def embedded(name: str, content: Any) -> str:
    """Plain data as JSON inside of a page: no text in it can end the element or begin another."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for bad in "<>&\u2028\u2029":
        text = text.replace(bad, f"\\u{ord(bad):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


# -- small parts ------------------------------------------------------------------------------------------------------


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    start = f'<p class="{kind}">' if kind else "<p>"
    return "".join(f"{start}{escape(text)}</p>" for text in texts)


def bullets(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def terms(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of terms with their explanations."""
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in pairs) + "</dl>"


def cards(numbers: Iterable[tuple[str, str, str]]) -> str:
    """(name, number, what it means): the few numbers that matter most."""
    parts = "".join(
        f'<div class="card"><div class="name">{escape(name)}</div><div class="number">{escape(shown)}</div>'
        f'<div class="meaning">{escape(meaning)}</div></div>'
        for name, shown, meaning in numbers
    )
    return f'<div class="cards">{parts}</div>'


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = (0,), marks: Any = ()) -> str:
    """A table; columns of numbers are to the right, those of `words` to the left, rows of `marks` stand out."""
    kinds = ["" if k in words else ' class="right"' for k in range(len(titles))]
    head = "".join(f"<th{kind}>{escape(title)}</th>" for kind, title in zip(kinds, titles, strict=True))
    body = "".join(
        f"<tr{' class=missed' if k in marks else ''}>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for k, row in enumerate(rows)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def code(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"


def badge(text: str, kind: str) -> str:
    """`kind` is good, bad or open."""
    sign = {"good": "✓", "bad": "✕", "open": "…"}[kind]
    return f'<span class="badge {kind}"><span aria-hidden="true">{sign}</span> {escape(text)}</span>'
