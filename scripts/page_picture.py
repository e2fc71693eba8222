"""Picture one section of a report: `python -m scripts.page_picture PICTURE.png REPORT.html SECTION [HEIGHT]`, in Chromium."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.view.browser import a_tab

WIDTH, MARGIN = 1000, 8  # pixels


def main() -> None:
    """Write the picture."""
    picture, report, section, *height_given = sys.argv[1:]
    with a_tab() as tab:
        tab.open(Path(report).resolve().as_uri(), width=WIDTH)
        element = f"document.getElementById({json.dumps(section)})"
        tab.wait_for(f"{element} && !{element}.hidden && document.querySelector('footer')")
        x, y, width, height = tab.run(
            f"(() => {{ const at = {element}.getBoundingClientRect(); return [at.x, at.y + scrollY, at.width, at.height]; }})()"
        )
        clip = {"x": max(0, x - MARGIN), "y": y - MARGIN, "width": width + 2 * MARGIN}
        clip["height"] = int(height_given[0]) if height_given else height + 2 * MARGIN
        tab.picture(Path(picture), clip=clip)


if __name__ == "__main__":
    main()
