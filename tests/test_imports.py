"""Dependencies point one way: read from the import statements of every file."""

import ast
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "cmdpkit"

ROOMS = [
    ["checks", "files"],
    ["cluster"],
    ["options", "tables", "drawing"],
    ["settings", "model"],
    ["draws"],
    ["policy"],
    ["evaluation"],
    ["simulators", "exact", "envs"],
    ["rules"],
    ["primal_dual"],
    ["learners"],
    ["certificates"],
    ["run"],
    ["sharded"],
    ["report"],
    ["solver", "training", "problems"],
    ["insight"],
    ["experiments"],
    ["cli"],
    ["__main__", ""],
]
"""From the bottom to the top: a room may import what lies below it, and itself."""

LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


@cache
def modules():
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}


def imports(path, everywhere=True):
    """Modules of the package that a file imports: (name, line, whether it is for the type checker alone)."""
    tree = ast.parse(path.read_text())
    typing = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree) if everywhere else tree.body:
        if id(node) in typing:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cmdpkit":
            base = node.module.removeprefix("cmdpkit").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                yield inner if inner in modules() or f"{inner}.__init__" in modules() else base
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("cmdpkit").lstrip(".") for a in node.names if a.name.startswith("cmdpkit"))


def outside(path):
    """Packages of others that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)


def room(module):
    return module.split(".")[0].removesuffix("__init__")


@pytest.mark.parametrize("module", sorted(modules()))
def test_rooms_import_what_lies_below_them(module):
    shows = module == "run.result"  # str(result) is a table, result.report a page: only these methods import them
    for other in imports(modules()[module]):
        if room(other) == room(module) or other in ("", "__init__"):
            continue
        if shows and other in ("report", "insight.report"):
            continue
        assert LEVEL[room(other)] < LEVEL[room(module)], f"{module} imports {other}"


def test_no_module_imports_itself_in_a_circle():
    """Statements at the top of a file, package initialisers included: what Python runs when it imports."""
    graph = {}
    for name, path in modules().items():
        needs = set()
        for other in imports(path, everywhere=False):
            parts = other.split(".")
            needs |= {".".join([*parts[:i], "__init__"]) for i in range(1, len(parts) + 1)} | {other}
        own = name.rsplit(".", 1)[0] + ".__init__"
        graph[name] = {n for n in needs if n in modules() and n not in (name, own)}
    done, stack = set(), []

    def visit(name):
        if name in stack:
            raise AssertionError(" -> ".join([*stack[stack.index(name) :], name]))
        if name not in done:
            stack.append(name)
            for other in sorted(graph[name]):
                visit(other)
            done.add(stack.pop())

    for name in sorted(graph):
        visit(name)


@pytest.mark.parametrize(
    ("package", "rooms"),
    [
        ("torch", ("learners.neural", "training")),
        ("rich", ("report", "cli.common", "experiments")),
        ("click", ("cli",)),
        ("matplotlib", ("drawing",)),
        ("gymnasium", ("envs", "model.gymnasium", "experiments.tasks", "experiments.velocity")),
        ("ray", ("cluster",)),
        ("dash", ("insight.explorer",)),
        ("flask", ("insight.explorer",)),
        ("werkzeug", ("insight.explorer",)),
    ],
)
def test_heavy_packages_have_a_room(package, rooms):
    users = [name for name, path in modules().items() if package in outside(path)]
    assert users, f"nothing imports {package} any more"
    strays = [name for name in users if not name.startswith(rooms)]
    assert not strays


def test_the_checker_imports_no_solver():
    seen, waiting = set(), ["certificates.checker", "certificates.certificate", "run.status"]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in modules():
            continue
        seen.add(name)
        for other in imports(modules()[name]):
            waiting += [other, f"{other}.__init__"]
    assert not {name for name in seen if room(name) in ("exact", "rules", "learners", "report")}
