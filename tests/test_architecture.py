"""The house rules that a machine can hold: who may import whom, what import costs, docstrings."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "hardware": {"hardware"},
    "workloads": {"workloads"},
    "simulator": {"hardware", "workloads", "simulator"},
    "validation": {"hardware", "workloads", "simulator", "validation"},
}
"""Package -> packages of ours that it may import."""

SLOW = ("matplotlib", "networkx", "scipy", "pandas", "PIL")
"""What `clustersim simulate` loads only where needed: an import of each costs 0.1 s or more."""


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


ALL = [path for package in MAY_IMPORT for path in modules(package)]
NAMES = [str(path.relative_to(ROOT)) for path in ALL]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST, package: str) -> Iterator[str]:
    """Top-level packages that a statement imports; a relative import is of the package itself."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield package if node.level else (node.module or "").split(".")[0]


def at_module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import: not those of functions, nor those for type checkers."""
    for node in body:
        if isinstance(node, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from at_module_level([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handlers = [statement for handler in node.handlers for statement in handler.body]
            yield from at_module_level([*node.body, *handlers, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.With | ast.ClassDef):
            yield from at_module_level(node.body)
        else:
            yield node


def test_there_is_something_to_hold() -> None:
    assert all(len(modules(package)) >= 5 for package in MAY_IMPORT)


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_imports_point_one_way(path: Path) -> None:
    """Anywhere in a module, function bodies and type-checking blocks included."""
    package = path.relative_to(ROOT).parts[0]
    found = {name for node in ast.walk(tree(path)) for name in imported(node, package)}
    assert found & set(MAY_IMPORT) <= MAY_IMPORT[package]
    assert "tests" not in found


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of_ours() -> dict[str, set[str]]:
    """Module -> modules of ours that importing it loads directly."""
    known = {module_name(path) for path in ALL}
    graph: dict[str, set[str]] = {}
    for path in ALL:
        found: set[str] = set()
        for node in at_module_level(tree(path).body):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[module_name(path)] = found & known
    return graph


def test_no_module_imports_itself_in_a_circle() -> None:
    """Follow imports that run on import; a package's own __init__ is left out."""
    graph, done = imports_of_ours(), set[str]()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name not in done:
            for other in sorted(graph[name] - set(MAY_IMPORT)):
                visit(other, (*above, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


SIMULATE = """
from simulator.loading import load_run
from simulator.simulate import simulate
simulate(load_run("examples/toy-2-nodes.yaml")).to_json()
"""


@pytest.mark.parametrize(
    "code",
    ["import simulator.simulate", "import simulator.cli", SIMULATE],
    ids=["import simulate", "import cli", "simulate"],
)
def test_simulate_path_loads_nothing_slow(code: str) -> None:
    show = "\nimport sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code + show], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "simulator" in loaded
    assert loaded & set(SLOW) == set()


def undocumented(body: list[ast.stmt]) -> Iterator[str]:
    """Public classes and functions of a module without a docstring."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            public = not node.name.startswith("_")
            if public and ast.get_docstring(node) is None:
                yield node.name


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_public_names_have_docstrings(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "the module itself has none"
    assert list(undocumented(tree(path).body)) == []


def shipped_files() -> Iterator[Path]:
    for folder in (*MAY_IMPORT, "tests", "examples", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".yaml", ".yml", ".md", ".csv", ".json", ".txt", ".sh"}:
                yield path
    yield from sorted(path for path in ROOT.glob("*") if path.suffix in {".md", ".toml", ".sh"})


def test_nothing_points_outside_the_project() -> None:
    """Sources are named by paper, page or repository, never by a folder beside the checkout."""
    outside = ".." + "/shared"
    found = [
        str(path.relative_to(ROOT))
        for path in shipped_files()
        if path != Path(__file__) and outside in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert found == []


LONGEST_FUNCTION = 80
"""Lines. Few functions pass 60; one that passes this wants to be two."""


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_no_function_is_too_long_to_read(path: Path) -> None:
    sizes = {
        node.name: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef)
    }
    assert {name: size for name, size in sizes.items() if size > LONGEST_FUNCTION} == {}
