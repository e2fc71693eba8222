"""The import law: `core` is pure, `engine` does not know `cli`, `node` stands alone, and files stay short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.builders import ROOT

PACKAGE = ROOT / "compose_sim"
FILES = sorted(PACKAGE.rglob("*.py"))
IMPURE = {
    "os",
    "subprocess",
    "socket",
    "time",
    "threading",
    "click",
    "pathlib",
    "random",
    "shutil",
    "tempfile",
    "docker",
}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(path.relative_to(ROOT).with_suffix("").parts[: -node.level]) if node.level else ""
            found.add(".".join(part for part in (package, node.module or "") if part))
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").rglob("*.py")), ids=name)
def test_core_touches_nothing(path: Path) -> None:
    """Decisions are made from values alone. PurePath is a value; Path is the file system."""
    modules = {module for module in imports(path) if module.split(".")[0] in IMPURE}
    if modules == {"pathlib"}:
        text = path.read_text()
        modules = (
            set() if "import PurePosixPath\n" in text and "Path(" not in text.replace("PurePosixPath(", "") else modules
        )
    outside = {
        module
        for module in imports(path)
        if module.startswith(("compose_sim.engine", "compose_sim.cli", "compose_sim.node"))
    }

    assert modules | outside == set()


@pytest.mark.parametrize(
    "path", [*sorted((PACKAGE / "engine").rglob("*.py")), PACKAGE / "run.py", PACKAGE / "render.py"], ids=name
)
def test_engine_does_not_speak_to_the_person(path: Path) -> None:
    """Words are the business of `cli`."""
    assert {module for module in imports(path) if module.startswith(("compose_sim.cli", "click", "rich"))} == set()


@pytest.mark.parametrize("path", sorted((PACKAGE / "node").rglob("*.py")), ids=name)
def test_node_code_stands_alone(path: Path) -> None:
    """What runs inside nodes finds neither composesim nor its libraries there; a file of one framework finds that one."""
    import sys

    framework = path.stem.partition("_")[0]
    allowed = (
        set(sys.stdlib_module_names) | {"torch", framework} | {file.stem for file in (PACKAGE / "node").glob("*.py")}
    )

    assert {module.split(".")[0] for module in imports(path)} - allowed <= {"compose_sim"}
    assert {
        module
        for module in imports(path)
        if module.startswith("compose_sim") and not module.startswith("compose_sim.node")
    } == set()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_is_read_in_one_sitting(path: Path) -> None:
    """Under 300 lines, and its first sentence says what question it answers."""
    text = path.read_text()

    assert len(text.splitlines()) < 300
    assert ast.get_docstring(ast.parse(text)) is not None


def test_help_imports_no_heavy_library() -> None:
    """`composesim --help` must not pay for torch, pydantic or rich."""
    import subprocess
    import sys

    code = "import sys; import compose_sim.cli; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )

    assert loaded & {"torch", "pydantic", "docker", "rich", "jinja2", "yaml", "jsonschema", "psutil"} == set()
