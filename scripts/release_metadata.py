"""Write the addresses of a release into pyproject.toml and README.md: `release_metadata.py https://HOST/OWNER/NAME v0.1.0`.

They are not in the repository, which does not know where it is published. README.md is also the page of the package index, where a
link needs a host.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_BEFORE = "[project.scripts]\n"
_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")


def urls(repository: str, tag: str) -> str:
    """Return the table of project URLs."""
    addresses = {
        "Source": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    return "\n".join(["[project.urls]", *(f'{name} = "{address}"' for name, address in addresses.items()), "", ""])


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose links and pictures have a host."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1].endswith((".png", ".svg")) else "blob"
        return f"]({repository}/{kind}/{tag}/{link[1]})"

    return _LINK.sub(absolute, text)


def main() -> None:
    """Change both files in the current folder."""
    repository, tag = sys.argv[1:]
    project, readme = Path("pyproject.toml"), Path("README.md")
    before, after = project.read_text().split(_BEFORE)
    project.write_text(before + urls(repository, tag) + _BEFORE + after)
    readme.write_text(with_absolute_links(readme.read_text(), repository, tag))


if __name__ == "__main__":
    main()
