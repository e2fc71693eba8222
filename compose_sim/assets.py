"""Find the files that ship with the package: templates, the default workload and its data.

In a wheel they are under `compose_sim/_assets`, and in a checkout next to the package, with the same relative names.
Nodes get these files by bind mount, so the package cannot be imported from a zip file.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """Return the folder that holds `docker-compose.yml.j2`, `templates/`, `train_ddp.py` and `data/`."""
    shipped = _PACKAGE / "_assets"
    return shipped if (shipped / "docker-compose.yml.j2").is_file() and not is_checkout() else _PACKAGE.parent


def examples() -> Path:
    """Return the folder of the examples of recipes, which read data in a folder above."""
    return root() / "templates" / "examples"


def own_files() -> tuple[Path, ...]:
    """Return the files and folders of composesim itself, which holds the code that is running."""
    return (_PACKAGE, *(root() / name for name in ("templates", "train_ddp.py", "data")))


def node_code() -> Path:
    """Return the folder of the code that runs inside nodes."""
    return _PACKAGE / "node"


def plug_ins_with(part: str) -> dict[str, Path]:
    """Return the folders of plug-ins that have a certain folder, such as `node`, by name."""
    return {path.name: path for path in sorted((_PACKAGE / "plugins").iterdir()) if (path / part).is_dir()}


def is_checkout() -> bool:
    """Return whether the package is in a checkout, not in a wheel."""
    # An editable install also copies the assets into site-packages. Those copies go stale, so the checkout wins.
    return (_PACKAGE.parent / "pyproject.toml").is_file() and (_PACKAGE.parent / "docker-compose.yml.j2").is_file()
