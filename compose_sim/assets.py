"""Where are the files that ship beside the package: the templates, the default workload and its data?

In a wheel they lie under `compose_sim/_assets`, in a checkout in the folder above the package, with the same relative names.
Nodes get these files by bind mount, so the package must be unpacked on disk (no zip imports).
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def root() -> Path:
    """The folder that holds `docker-compose.yml.j2`, `templates/`, `train_ddp.py` and `data/`."""
    shipped = _PACKAGE / "_assets"
    return shipped if (shipped / "docker-compose.yml.j2").is_file() and not _is_checkout() else _PACKAGE.parent


def examples() -> Path:
    """The folder of the recipes' examples, which read their data beside the folders above it."""
    return root() / "templates" / "examples"


def node_code() -> Path:
    """The folder of the code that runs inside nodes."""
    return _PACKAGE / "node"


def _is_checkout() -> bool:
    # An editable install also copies the assets into site-packages, where they go stale; the checkout wins.
    return (_PACKAGE.parent / "pyproject.toml").is_file() and (_PACKAGE.parent / "docker-compose.yml.j2").is_file()
