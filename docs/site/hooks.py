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
    return re.sub(
        r"(?<!!)\[([^\]]*)\]\((?:\.\./)*(?:src|tests|benchmarks|CITATION|LICENSE|README)[^)]*\)", r"\1", markdown
    )


def on_page_content(html, page, config, files):
    """Mathematics, marked by arithmatex, as MathML: browsers render it without scripts or fonts from elsewhere."""
    html = re.sub(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', _display, html, flags=re.DOTALL)
    return re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', _inline, html, flags=re.DOTALL)


def _display(found):
    return f'<div class="equation">{convert(unescape(found[1]).strip(), display="block")}</div>'


def _inline(found):
    return convert(unescape(found[1]).strip())


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
