"""Write a folder that runs without composesim: a compose file and the code of nodes, or a job, and a copy of the project."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from compose_sim import assets
from compose_sim.app.documents import write_documents
from compose_sim.app.request import Request, program_of
from compose_sim.app.session import Session
from compose_sim.core.compose.document import check_document
from compose_sim.core.plan.model import HIDDEN
from compose_sim.core.request.job_files import WRITERS, Exported
from compose_sim.core.text import format_bytes
from compose_sim.engine.docker.images import HOST_IMAGE, ensure_host_image
from compose_sim.engine.host.docker_facts import docker_facts
from compose_sim.engine.project_files import read_project_file
from compose_sim.engine.run_folder.folder import lay_out
from compose_sim.engine.run_folder.safe_files import SafeFolder
from compose_sim.engine.subprocesses import try_output_of
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import find

_COMPOSE_FILE = "docker-compose.yml"
_MAX_CODE_BYTES = 200 << 20
_NOT_CODE = {
    *(".git", ".hg", ".venv", "venv", "__pycache__", HIDDEN, "node_modules"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache"),
}


def render(session: Session, *, force: bool) -> int:
    """
    Write everything that `docker compose up` needs into the folder of a portable session; return the bytes of code copied.

    If the script is outside the project, the script's folder is copied instead of the project.
    Raises SpecError if the folder holds other files, or there is too much code to copy.
    """
    plan, folder, request = session.plan, session.folder.path, session.request
    root, code = _project_code(request, folder, force=force)
    image = HOST_IMAGE if plan.image == "host" else plan.image
    text = write_documents(plan, folder, image=image, dotenv=request.dotenv)
    check_document(text, json.loads((assets.root() / "templates" / "schema" / "compose-spec.json").read_text()))
    lay_out(folder, *plan.owner_ids, token=plan.has_token, containers=plan.writers)
    size = _copy_code(code, root, SafeFolder(folder))
    if plan.image == "host" and docker_facts().available:
        ensure_host_image()
    return size


def render_job(request: Request, folder: Path, *, force: bool) -> tuple[Exported, int]:
    """Write the job of a cluster and the code that it runs into a folder; return the job and the bytes of code copied.

    Raises SpecError as `render` does, and for what the job cannot do.
    """
    engine = request.spec.engine
    writer = find(WRITERS, engine)
    if writer is None:
        raise SpecError(
            f"nothing is installed that writes jobs for {engine}", hint=f"composesim up --engine {engine} …"
        )
    job: Exported = writer.load()(request, engine, accelerator="")
    root, code = _project_code(request, folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    files = SafeFolder(folder)
    files.replace(job.file, job.text)
    return job, _copy_code(code, root, files)


def _project_code(request: Request, folder: Path, *, force: bool) -> tuple[Path, list[tuple[Path, str]]]:
    """Return the folder of the code, and each file to copy with its name in the copy; SpecError if `folder` holds other files."""
    if folder.exists() and any(folder.iterdir()) and not force and not _is_ours(folder):
        new = next(each for number in count(1) if not os.path.lexists(each := f"{folder}-{number}"))
        raise SpecError(f"the folder '{folder}' is not empty", hint=f"composesim render {new} …")
    program = program_of(request)
    is_script = not (program.is_module or program.is_command)
    script = Path(os.path.abspath(request.folder / program.target)) if is_script else None
    root = script.parent if script and not script.is_relative_to(request.folder) else request.folder
    # Listed before the folder fills, because the project may contain it.
    return root, list(_code_files(root, script, project=request.folder, besides=folder))


def _is_ours(folder: Path) -> bool:
    """Return whether composesim rendered this folder, and may overwrite what is in it."""
    files = SafeFolder(folder)
    is_there = files.status(_COMPOSE_FILE) is not None
    return is_there and b"# Written by composesim." in files.read_bytes(_COMPOSE_FILE, size=500)


def _code_files(root: Path, script: Path | None, *, project: Path, besides: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file to copy with its name in the copy. The script is always among them."""
    ours = assets.root()
    if script and root != project and root in (ours, *assets.examples()):  # an example of ours: with its data
        yield script, script.name
        yield from ((path, str(path.relative_to(ours))) for path in sorted((ours / "data").iterdir()))
        return
    names = dict.fromkeys([*_names_below(root), *([str(script.relative_to(root))] if script else [])])
    besides = besides.resolve()
    for name in names:
        path = root / name
        if path.is_file() and not path.resolve().is_relative_to(besides) and path.name != ".env":
            yield path, name


def _names_below(root: Path) -> list[str]:
    """Return the files that git tracks or does not ignore; without git, all but caches and environments. None was rendered."""
    # The configuration of a repository can name programs that git executes.
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    status, output = try_output_of(["git", "-C", str(root), "-c", "core.fsmonitor=false", *words])
    names = [name for name in output.split("\0") if name]
    if status or not names:
        names = list(_walk(root))
    rendered = {path.parent for path in map(Path, names) if path.name == _COMPOSE_FILE and _is_ours(root / path.parent)}
    rendered.discard(Path())  # the project is what the user wants to render
    return [name for name in names if rendered.isdisjoint(Path(name).parents)]


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if name not in _NOT_CODE]
        yield from (str((here / name).relative_to(root)) for name in files)


def _copy_code(files: list[tuple[Path, str]], root: Path, target: SafeFolder) -> int:
    """Copy files into `code`, following no link there; return their size."""
    target.make_folder("code")
    size = sum(path.stat().st_size for path, _ in files)
    if size > _MAX_CODE_BYTES:
        largest = max(files, key=lambda each: each[0].stat().st_size)[1]
        raise SpecError(
            f"the code to copy is {format_bytes(size)}, more than {format_bytes(_MAX_CODE_BYTES)}; the largest file is '{largest}'",
            hint="add data to .gitignore, and mount it on the nodes: --mount /path/to/data:/data:ro",
        )
    for path, name in files:
        # Without the bits that would run a copy with our rights.
        mode = path.stat().st_mode & 0o777
        target.replace(f"code/{name}", read_project_file(path, root, size=_MAX_CODE_BYTES), mode=mode)
    return size
