"""Write the compose file of a plan and the files that it refers to."""

from __future__ import annotations

import os
from pathlib import Path

import jinja2

from compose_sim import assets
from compose_sim.core.compose.document import (
    IDENTITY_FILES,
    render_document,
    render_identity,
    render_service_files,
    render_settings,
)
from compose_sim.core.plan.model import HIDDEN, Plan
from compose_sim.core.plan.mounts import EMPTY
from compose_sim.core.plan.services import FILES as SERVICE_FILES
from compose_sim.engine.run_folder.folder import is_run_folder
from compose_sim.engine.run_folder.safe_files import SafeFolder


def write_documents(plan: Plan, path: Path, *, image: str, dotenv: str = "") -> str:
    """Write the documents into a folder and return the text of the compose file. Only the owner can read secrets in them."""
    loader = jinja2.FileSystemLoader(assets.root())
    text, files = render_document(plan, loader=loader, folder=str(path), real_path=os.path.realpath), SafeFolder(path)
    files.replace("docker-compose.yml", text, mode=0o600)
    files.replace(".env", render_settings(plan, image=image, dotenv=dotenv), mode=0o600)
    if is_run_folder(path):
        files.share_folder(EMPTY, plan.owner_ids)
        for mount in plan.mounts:  # of a project within a folder that is covered, such as of `check --resume`
            if within := mount.target.partition(f"/{HIDDEN}/")[2]:
                files.make_folder(f"{EMPTY}/{within}")
    for folder, own_files in (
        (IDENTITY_FILES, render_identity(plan)),
        (SERVICE_FILES, render_service_files(plan, loader=jinja2.FileSystemLoader("/"))),
    ):
        if own_files:
            files.share_folder(folder, plan.owner_ids)
        for name, content in own_files.items():
            files.replace(f"{folder}/{name}", content)
    return text
