"""Find the files that ship with the package: templates, the default workload and its data.

In a wheel they are in the package, and in a checkout next to it, with the same relative names. Those of plug-ins are in their folders.
Nodes get these files by bind mount, so the package cannot be imported from a zip file.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """Return the folder that holds `docker-compose.yml.j2`, `templates/`, `train_ddp.py` and `data/`."""
    return _PACKAGE.parent if is_checkout() else _PACKAGE


def templates() -> tuple[Path, ...]:
    """Return the folders of templates: ours, and those of plug-ins."""
    return (root() / "templates", *sorted(_PACKAGE.glob("plugins/*/templates")))


def examples() -> tuple[Path, ...]:
    """Return the folders of the examples of recipes, which read data in a folder above."""
    return tuple(folder / "examples" for folder in templates())


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
