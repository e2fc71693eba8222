"""
Picture one section of a report in Chromium, or with `page` the page to the end of the lanes, where `timeline` ends, too.

`python -m scripts.page_picture PICTURE.png REPORT.html SECTION [dark]`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.view.browser import a_tab

WIDTH, WIDTH_OF_PAGE, MARGIN = 1000, 1280, 8  # pixels
SHOW_STEPS = "(async () => { fitSteps(); await new Promise((done) => setTimeout(done, 300)); })()"


def main() -> None:
    """Write the picture."""
    picture, report, section, *more = sys.argv[1:]
    with a_tab() as tab:
        wide = WIDTH_OF_PAGE if section == "page" else WIDTH
        tab.open(Path(report).resolve().as_uri(), width=wide, scheme=more[0] if more else "light")
        tab.wait_for("document.querySelector('footer')")
        if section == "page":
            tab.run(SHOW_STEPS)
            bottom = tab.run("document.querySelector('#timeline .layers').getBoundingClientRect().bottom + scrollY")
            clip: dict[str, float] = {"x": 0, "y": 0, "width": wide, "height": int(bottom)}
        else:
            element = f"document.getElementById({json.dumps(section)})"
            tab.wait_for(f"{element} && !{element}.hidden")
            end = f"({element}.querySelector('.layers') || {element}).getBoundingClientRect().bottom"
            x, y, width, height = tab.run(
                f"(() => {{ const at = {element}.getBoundingClientRect(); return [at.x, at.y + scrollY, at.width, {end} - at.y]; }})()"
            )
            clip = {"x": max(0, x - MARGIN), "y": y - MARGIN, "width": width + 2 * MARGIN}
            # No margin below the lanes: it would cut a line of text in half
            clip["height"] = int(height) + MARGIN * (1 if section == "timeline" else 2)
        tab.picture(Path(picture), clip=clip)


if __name__ == "__main__":
    main()
