"""What the site adds to MkDocs: pages from files elsewhere, notebooks, and mathematics as MathML at build time."""

import re
from html import unescape
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages whose source is in the root of the repository."""
FORMULAS = ("theory.md", "decisions.md", "results.md")
"""Pages with formulas in plain text."""


def on_files(files, config):
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        text = Path(notebook.abs_src_path).read_text("utf-8")
        files.append(File.generated(config, notebook.src_uri[: -len("ipynb")] + "md", content=notebook_page(text)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links to files that are no pages become plain text; those of files in the root are adjusted."""
    uri = page.file.src_uri
    if uri in ELSEWHERE:
        markdown = re.sub(r"\]\((?:docs/)([^)]*)\)", r"](\1)", markdown)
    up = "../" * uri.count("/")
    for name, source in ELSEWHERE.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{re.escape(source)}(#[^)]*)?\)", rf"]({up}{name}\1)", markdown)
    markdown = re.sub(r"(\]\([^)]*)\.ipynb\)", r"\1.md)", markdown)
    markdown = _with_indices(markdown) if uri in FORMULAS else markdown
    return re.sub(
        r"(?<!!)\[([^\]]*)\]\((?:\.\./)*(?:src|tests|benchmarks|CITATION|LICENSE|README)[^)]*\)", r"\1", markdown
    )


def _with_indices(markdown):
    """V_k, x_{k+1} and x* in prose, as indices and stars; GitHub reads them as text, Python-Markdown as emphasis."""
    parts = re.split(r"(```.*?```|\$\$.*?\$\$|`[^`\n]*`|\$[^$\n]+\$|\]\([^)]*\))", markdown, flags=re.DOTALL)
    parts[::2] = [_indexed(text) for text in parts[::2]]  # code, TeX and the targets of links stay
    return "".join(parts)


def _indexed(text):
    symbol = r"(?<![A-Za-z\\*])([A-Za-zα-ωΑ-Ωℓ][\u0300-\u036f]?|[‖\])}₊⁺′])"
    text = re.sub(rf"{symbol}\*(?!\*)", r"\1&#42;", text)
    text = re.sub(rf"{symbol}_([A-Za-z0-9α-ωℓ*∞])(?![a-z])", r"\1<sub>\2</sub>", text)
    text = re.sub(r"((?:[A-Zα-ωℓ][\u0300-\u036f]?|\bmax|\bmin))_([a-z0-9α-ω])(?![a-z])", r"\1<sub>\2</sub>", text)
    text = re.sub(r"(&#42;|[²⁺)])_([A-Za-z])(?![a-z])", r"\1<sub>\2</sub>", text)
    text = re.sub(r"([A-Zqτ])_([ik])(?=[xveW⁺])", r"\1<sub>\2</sub>", text)  # factors without a space
    text = re.sub(r"_\{([^{}]*)\}", r"<sub>\1</sub>", text)
    text = re.sub(r"\^\{([^{}]*)\}", r"<sup>\1</sup>", text)
    text = re.sub(r"(?<=[^\s_])_\*", "<sub>&#42;</sub>", text)
    return re.sub(r"(?<=[^\s_])_(?=[\w(])", "&#95;", text).replace("<sub>*</sub>", "<sub>&#42;</sub>")


def on_page_content(html, page, config, files):
    """Mathematics, marked by arithmatex, as MathML: browsers render it without scripts or fonts from elsewhere."""
    html = re.sub(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', _display, html, flags=re.DOTALL)
    return re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', _inline, html, flags=re.DOTALL)


def _display(found):
    return f'<div class="equation">{_mathml(found[1], "block")}</div>'


def _inline(found):
    return _mathml(found[1], "inline")


def _mathml(tex, display):
    text = convert(unescape(tex).strip(), display=display)
    return re.sub(r"<mo[^>]*>(&#x02016;|&#x02225;)</mo>", r'<mo stretchy="false">\1</mo>', text)  # the bars of a norm


def notebook_page(text):
    """A notebook as Markdown: code with what it printed, as stored."""
    parts = []
    for cell in nbformat.reads(text, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        shown = "".join(_text(output) for output in cell.outputs).rstrip()
        if shown:
            parts.append(f"```text\n{shown}\n```")
    return "\n\n".join(parts) + "\n"


def _text(output):
    if output.output_type == "stream":
        return output.text
    return output.get("data", {}).get("text/plain", "") + "\n"
