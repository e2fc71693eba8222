"""How does a plan become files that Compose runs? The document and its settings; and, for `render`, all that they need to travel."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import jinja2

from compose_sim import assets
from compose_sim.core.compose.document import render_document, render_identity, render_service_files, render_settings
from compose_sim.core.compose.schema import check_document
from compose_sim.core.host.host import Host
from compose_sim.core.plan.model import Plan
from compose_sim.core.plan.services import FILES as SERVICE_FILES
from compose_sim.core.units import format_bytes
from compose_sim.engine.docker.images import HOST_IMAGE
from compose_sim.engine.run_folder.folder import lay_out, write_file
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import SpecError

_MOST_CODE_BYTES = 200 << 20
_NOT_CODE = {
    ".git",
    ".hg",
    ".venv",
    "venv",
    "__pycache__",
    ".composesim",
    "node_modules",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
}


def render_folder(
    plan: Plan, folder: Path, *, code: Path, script: Path | None, host: Host, dotenv: str, force: bool
) -> int:
    """
    Write everything that `docker compose up` needs into a folder; returns the size of the copied code in bytes.

    `code` is the project; where the script lies outside it, the script's own folder is copied instead.
    Raises SpecError where the folder holds other files, or the code is too much to copy.
    """
    if folder.exists() and any(folder.iterdir()) and not force and not _is_ours(folder / "docker-compose.yml"):
        raise SpecError(
            f"the folder '{folder}' is not empty", hint=f"composesim render {folder} --force …, or name a new folder"
        )
    image = HOST_IMAGE if plan.image == "host" else plan.image
    text = write_documents(plan, folder, image=image, dotenv=dotenv)
    check_document(text, json.loads((assets.root() / "templates" / "schema" / "compose-spec.json").read_text()))
    lay_out(folder, *plan.user_ids, token=plan.has_token)
    (folder / "code").mkdir(exist_ok=True)
    return _copy_code(list(_code_files(code, script, besides=folder)), folder / "code")


def write_documents(plan: Plan, path: Path, *, image: str, dotenv: str = "") -> str:
    """Write the compose file and what it refers to into a folder; returns the file's text. Secrets stay readable to the owner alone."""
    loader = jinja2.FileSystemLoader(assets.root())
    text = render_document(plan, loader=loader, folder=str(path))
    write_file(path / "docker-compose.yml", text, mode=0o600)
    write_file(path / ".env", render_settings(plan, image=image, dotenv=dotenv), mode=0o600)
    for name, content in render_identity(plan).items():
        write_file(path / "identity" / name, content)
    for name, content in render_service_files(plan, loader=loader).items():
        write_file(path / SERVICE_FILES / name, content)
    return text


def _is_ours(document: Path) -> bool:
    """Whether composesim rendered this file, and may therefore write it again."""
    return document.is_file() and "# Written by composesim." in document.read_text(errors="replace")[:500]


def _code_files(code: Path, script: Path | None, *, besides: Path) -> Iterator[tuple[Path, str]]:
    """Each file to copy, with its name below the copy; the script always."""
    root = code
    if script and not script.is_relative_to(code):
        root, ours = script.parent, assets.root()
        if root in (ours, assets.examples()):  # one of ours, with the data that it reads
            yield script, script.name
            yield from ((path, str(path.relative_to(ours))) for path in sorted((ours / "data").iterdir()))
            return
    names = dict.fromkeys([*_names_below(root), *([str(script.relative_to(root))] if script else [])])
    for name in names:
        path = root / name
        if path.is_file() and not path.resolve().is_relative_to(besides.resolve()) and path.name != ".env":
            yield path, name


def _names_below(root: Path) -> list[str]:
    """What git knows or does not ignore, where that is anything; else all that is not plainly somebody else's."""
    argv = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    status, output = try_output_of(argv)
    names = [name for name in output.split("\0") if name]
    if status == 0 and names:
        return names
    paths = (path.relative_to(root) for path in root.rglob("*"))
    return [str(path) for path in paths if not _NOT_CODE.intersection(path.parts)]


def _copy_code(files: list[tuple[Path, str]], target: Path) -> int:
    size = sum(path.stat().st_size for path, _ in files)
    if size > _MOST_CODE_BYTES:
        largest = max(files, key=lambda each: each[0].stat().st_size)[1]
        raise SpecError(
            f"the code to copy is {format_bytes(size)}, more than {format_bytes(_MOST_CODE_BYTES)}; the largest file is '{largest}'",
            hint="add data to .gitignore, and let nodes see it: --mount /path/to/data:/data:ro",
        )
    for path, name in files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target / name)
    return size
