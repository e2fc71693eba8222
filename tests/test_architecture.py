"""Which folder may import which, what `core` and `node` may touch, and how large files, functions and folders may grow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.builders import ROOT

PACKAGE = ROOT / "compose_sim"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts)
PLUGINS = sorted(path.parent.name for path in (PACKAGE / "plugins").glob("*/__init__.py"))

# Folder -> the folders of the package that its modules may import, besides the folder itself. "" is the package: errors and assets.
# A folder covers those below it that have no row.
MAY_IMPORT = {
    "core": {""},
    "core/host": {"", "core"},
    "core/network": {"", "core"},
    "core/events": {"", "core", "node/records"},
    "core/request": {"", "core", "core/network", "plugins"},
    "core/plan": {"", "core", "core/host", "core/network", "core/request", "plugins"},
    "core/compose": {"", "core", "core/plan"},
    "core/faults": {"", "core", "core/events", "core/network", "core/plan", "node/shared", "plugins"},
    "core/state": {"", "core", "core/events", "core/faults", "core/plan", "node/records"},
    "core/verdict": {"", "core", "core/events", "core/plan", "core/state"},
    "core/report": {"", "core", "core/faults", "core/host", "core/plan", "core/state", "core/verdict"},
    "core/checks": {
        "",
        "core",
        "core/events",
        "core/report",
        "core/request",
        "core/verdict",
        "node/records",
        "plugins",
    },
    "core/scenarios": {
        "",
        *(
            "core",
            "core/events",
            "core/faults",
            "core/plan",
            "core/report",
            "core/request",
            "core/state",
            "core/verdict",
            "plugins",
        ),
    },
    "core/view": {
        "",
        "core",
        "core/events",
        "core/faults",
        "core/plan",
        "core/report",
        "core/state",
        "core/verdict",
        "node/records",
    },
    "core/doctor": {"", "core", "core/host", "core/plan", "core/report"},
    "engine": {"", "core/*", "engine/*", "node/shared", "plugins"},
    "engine/run_folder": {"", "core/*", "engine", "node/records", "node/shared", "plugins"},
    "engine/host": {"", "core/*", "engine", "plugins"},
    "engine/docker": {"", "core/*", "engine", "engine/host", "engine/run_folder"},
    "engine/local": {"", "core/*", "engine", "engine/host", "engine/run_folder", "node/shared"},
    "engine/control": {"", "core/*", "engine", "engine/docker", "engine/run_folder", "node/shared"},
    "engine/lifetime": {
        "",
        "core/*",
        "engine",
        "engine/docker",
        "engine/host",
        "engine/run_folder",
        "plugins",
        "node/shared",
    },
    "view": {"", "core/*", "engine/*", "node/shared"},
    "app": {"", "core/*", "engine/*", "plugins"},
    "cli": {"", "app", "core/*", "engine/*", "plugins", "view"},
    "pytest_plugin": {"", "app", "core/*", "engine/run_folder"},
    "plugins": {""},
    "node": set(),
    "node/records": set(),
    "node/shared": set(),
    "node/agent": {"node/shared"},
    "node/master": {"node/shared"},
    "node/rank": {"node/records", "node/shared"},
    "node/starters": {"node/shared", "node/rank"},
}
# A layer of a plug-in may import what is below it in the package, and in the same plug-in.
LAYERS = {
    "node": {"node/*"},
    "core": {"", "core/*", "node/records", "plugins"},
    "engine": {"", "core/*", "engine/*"},
    "app": {"", "app", "core/*", "engine/*"},
    "cli": {"", "app", "cli", "core/*", "engine/*"},
}
for plugin in PLUGINS:
    MAY_IMPORT[f"plugins/{plugin}"] = set()
    below: set[str] = set()
    for layer, allowed in LAYERS.items():
        if (PACKAGE / "plugins" / plugin / layer).is_dir():
            MAY_IMPORT[f"plugins/{plugin}/{layer}"] = allowed | below
            below |= {f"plugins/{plugin}/{layer}"} if layer != "node" else set()
# Folders with one file per verb, observer or emulated part of CUDA may hold any number of them.
OPEN_FOLDERS = {
    "cli/commands",
    *("node/rank/observers", "node/rank/emulate"),
}
PATCHES_TORCH = {"node/rank/torch_hooks", "node/rank/emulate", "node/rank/emulate/children"}
TOO_MANY_MODULES, TOO_MANY_LINES, TOO_LONG_FUNCTION = 17, 500, 60
# The whole package, and without its plug-ins. A commit that raises a number does nothing else, and says what the lines buy.
MAX_LINES, MAX_LINES_WITHOUT_PLUG_INS, MAX_FILES = 78_183, 63_167, 570
SMALL = {  # modules of fewer than 30 lines, and why they are alone
    "app/builtin_run.py": "its two users do not need each other",
    "core/checks/tolerances.py": "a table that all checks share",
    "core/compose/names.py": "light commands need no Compose document",
    "core/compose/templates.py": "Dockerfiles and Compose documents share it",
    "core/plan/debug_configuration.py": "`init` and `attach` share it",
    "core/plan/node_roles.py": "light commands need no recipe",
    "engine/host/process_start.py": "imported before anything that takes time",
    "import_alias.py": "installed as another package",
    "node/rank/driver_script.py": "a role",
    "node/shared/emulation.py": "no other module of its folder knows of CUDA",
    "node/shared/plug_ins.py": "roles and observers share it",
    "node/shared/roles.py": "one term, of all processes of a node",
    "node/starters/import_ahead.py": "all starters share it",
    "version.py": "pyproject.toml reads it",
}
IMPURE = {
    *("os", "subprocess", "socket", "time", "threading", "click", "rich", "random", "shutil", "tempfile", "docker"),
}


def folder_of(path: Path) -> str:
    return str(path.parent.relative_to(PACKAGE)).removeprefix(".")


def is_in_layer(path: Path, layer: str) -> bool:
    parts = path.relative_to(PACKAGE).parts
    return layer in (parts[0], parts[2] if parts[0] == "plugins" and len(parts) > 2 else "")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}
CORE = [path for path in FILES if is_in_layer(path, "core")]
NODE = [path for path in FILES if is_in_layer(path, "node")]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Return every module that a file imports, anywhere in it, by name or with `import_module`."""
    found: set[str] = set()
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {name if (name := f"{base}.{alias.name}") in MODULES else base for alias in node.names}
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
            found.add(_module_named(node.args[0]))
    return frozenset(found)


def _module_named(argument: ast.expr) -> str:
    """Return the package in `import_module(f"package.{name}")`; a relative name belongs to the folder of the file."""
    parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    first = parts[0].value if isinstance(parts[0], ast.Constant) else ""
    return str(first).rstrip(".") if str(first).startswith("compose_sim") else ""


def rule_of(folder: str) -> tuple[str, set[str]] | None:
    """Return the row of MAY_IMPORT that covers a folder: that of the folder itself, or of the nearest folder above."""
    while folder not in MAY_IMPORT:
        folder, slash, _ = folder.rpartition("/")
        if not slash:
            return None
    return folder, MAY_IMPORT[folder]


def covers(allowed: set[str], folder: str) -> bool:
    """Return whether an allowed folder is this one or contains it; `core/*` allows every folder of core."""
    row = rule_of(folder)
    own = row[0] if row else folder
    return own in allowed or f"{own.split('/')[0]}/*" in allowed


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_folder_imports_only_what_its_row_allows(path: Path) -> None:
    row = rule_of(folder_of(path))
    if row is None or path.relative_to(PACKAGE) == Path("node/__main__.py"):  # the package itself, and the dispatcher
        return
    own, allowed = row
    folders = {folder_of(MODULES[module]) for module in imports(path) if module in MODULES}

    assert {f for f in folders if rule_of(f) != row and not covers(allowed, f)} == set(), f"beyond the row of {own!r}"


def test_every_folder_has_a_row() -> None:
    folders = {folder_of(path) for path in FILES} - {""}

    assert {folder for folder in folders if rule_of(folder) is None} == set()
    assert set(MAY_IMPORT) - {folder_of(path) for path in FILES} == set()


def test_nothing_imports_a_plug_in_except_itself() -> None:
    """The registry imports their tables, and loads the rest by the names in them: a folder may be deleted."""
    tables = {f"compose_sim.plugins.{plugin}": plugin for plugin in PLUGINS}
    found = {
        (str(path.relative_to(ROOT)), module)
        for path in [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
        for module in imports(path)
        if (plugin := tables.get(".".join(module.split(".")[:3]))) and f"plugins/{plugin}/" not in path.as_posix()
    }

    assert found == set()


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_core_touches_nothing(path: Path) -> None:
    """Decisions only use values. PurePosixPath is a value; Path is the file system."""
    modules = {module.split(".")[0] for module in imports(path)}
    names = {alias.name for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert modules & IMPURE == set()
    assert "pathlib" not in modules or "Path" not in names


@pytest.mark.parametrize("path", NODE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_node_code_needs_only_torch_and_its_framework(path: Path) -> None:
    """Inside nodes there is neither composesim nor the libraries that it uses."""
    parts = path.relative_to(PACKAGE).parts
    framework = {parts[1]} if parts[0] == "plugins" else set()
    if parts == ("node", "rank", "debugging", "debug_adapter.py"):
        framework |= {"debugpy", "pydevd", "_pydevd_bundle"}
    found = {module.split(".")[0] for module in imports(path)} - set(sys.stdlib_module_names)

    assert found <= {"torch", "compose_sim", "bootstrap", ""} | framework


@pytest.mark.parametrize("path", NODE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_node_code_runs_on_the_oldest_python(path: Path) -> None:
    """Nodes run the Python of the user's image, from 3.9 on; ruff sees the syntax of a later one, but not these arguments."""
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    calls = [call for call in calls if ast.unparse(call.func) in ("dataclass", "field", "zip")]
    assert not {"slots", "kw_only", "strict"} & {each.arg for call in calls for each in call.keywords}


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "core/checks").rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_only_rules_pronounce_results(path: Path) -> None:
    """What several rules share returns facts; whoever runs checks may only say why one does not apply."""
    called = {ast.unparse(node.func) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)}
    allowed = {"rules": {"passed", "failed", "warned", "not_applicable"}}.get(path.parent.name, {"not_applicable"})

    assert path.name == "__init__.py" or called & {"passed", "failed", "warned", "not_applicable"} <= allowed


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_read_in_one_sitting(path: Path) -> None:
    functions = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    }

    assert len(path.read_text().splitlines()) < TOO_MANY_LINES
    assert {name: lines for name, lines in functions.items() if lines > TOO_LONG_FUNCTION} == {}
    assert ast.get_docstring(tree_of(path)) is not None


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Imports inside functions and for types count too: each circle is one module in several files, or a misplaced name."""
    graph = {
        name: {each for each in imports(path) if each in MODULES and each != name} for name, path in MODULES.items()
    }

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize(
    "path",
    [path for path in NODE if folder_of(path).startswith("node/rank") and folder_of(path) not in PATCHES_TORCH],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_torch_is_patched_in_one_place(path: Path) -> None:
    """Observers, the recorder and the replayer subscribe to `torch_hooks/points.py`; only the emulation has patches of its own."""
    patches = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            owner = ast.unparse(node.args[0]) if node.args else ""
            if called == "wrap" or (called in ("setattr", "delattr") and owner != "self"):
                patches.append((node.lineno, called))
        targets = [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])
        for target in targets if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete) else []:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value).split(".")[0] in ("torch", "module"):
                patches.append((node.lineno, ast.unparse(target)))

    assert patches == []
    assert not any("import_hooks" in module for module in imports(path))


def test_a_folder_is_seen_at_a_glance() -> None:
    modules = Counter(folder_of(path) for path in FILES if path.name != "__init__.py")

    assert {folder: n for folder, n in modules.items() if n >= TOO_MANY_MODULES and folder not in OPEN_FOLDERS} == {}


def test_a_small_module_has_a_reason() -> None:
    small = {path for path in FILES if path.name != "__init__.py" and len(path.read_text().splitlines()) < 30}

    assert {path.relative_to(PACKAGE).as_posix() for path in small if "plugins" not in path.parts} == set(SMALL)


def test_what_observes_a_rank_imports_no_torch_before_the_script_does() -> None:
    """A hook that is set after the import of torch misses what the import binds."""
    observers = [f"compose_sim.plugins.{path.parts[-3]}.node.observer" for path in FILES if path.name == "observer.py"]
    modules = ", ".join(["compose_sim.node.rank.instrument", *observers])
    words = f"import {modules}, sys; print(*sorted({{'torch', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
    assert len(observers) >= 3


def test_the_package_does_not_grow_unnoticed() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    without = sum(count for path, count in lines.items() if "plugins" not in path.relative_to(PACKAGE).parts)

    assert sum(lines.values()) <= MAX_LINES
    assert without <= MAX_LINES_WITHOUT_PLUG_INS
    assert len(lines) <= MAX_FILES


def test_no_two_public_classes_share_a_name() -> None:
    """A private class is a detail of one file; a public one is a term of the project, and a term has one meaning."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))

    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_help_imports_no_heavy_library() -> None:
    """`composesim --help` must not pay for torch, pydantic or rich."""
    code = "import sys; import compose_sim.cli; print(*{m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())

    assert loaded & {"torch", "pydantic", "docker", "rich", "jinja2", "yaml", "jsonschema", "psutil"} == set()


@pytest.mark.parametrize("arguments", [["ps", "--all"], ["down"]])
def test_commands_that_plan_nothing_import_neither_pydantic_nor_jinja(tmp_path: Path, arguments: list[str]) -> None:
    loaded = loaded_by(arguments, tmp_path)

    assert "compose_sim.engine.registry" in loaded
    assert loaded & {"pydantic", "jinja2", "rich"} == set()


def loaded_by(arguments: list[str], folder: Path) -> set[str]:
    """Return the modules that a command has loaded when it ends, whatever it says."""
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from compose_sim.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=False, cwd=folder
    )
    return set(done.stdout.splitlines()[-1].split())


def test_plan_imports_nothing_that_only_runs_and_reports_need(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    loaded = loaded_by(["plan", "--engine", "local", "--nodes", "2", "train.py"], tmp_path)

    assert "compose_sim.core.plan.planner" in loaded
    assert (
        loaded & {"torch", "yaml", "jinja2", "jsonschema", "psutil", "http.client", "asyncio", "multiprocessing"}
        == set()
    )
    unneeded = ("state", "verdict", "report", "checks", "faults", "scenarios", "events")
    assert [name for name in loaded if name.startswith(tuple(f"compose_sim.core.{part}." for part in unneeded))] == [
        "compose_sim.core.events.events"  # removes what would act on the terminal
    ]
