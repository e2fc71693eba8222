"""The page of a run is one file that loads nothing, and in which no text of a script is code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

from compose_sim.core.events.events import Event
from compose_sim.core.report.report import CheckResult, Place
from compose_sim.core.state.timeline import Span
from compose_sim.core.view.page import PageFold
from compose_sim.view.bundle import report_page
from compose_sim.view.reader import Sources
from tests.builders import a_plan, a_report, an_event

HOSTILE = "</script><script>alert(1)</script><!-- /*STYLE*/ \u2028"


def page() -> str:
    fold = PageFold(a_plan(nodes=2))
    fold.add_events([Event(t=0.0, kind="started"), an_event("log", rank=0, line=HOSTILE)])
    return report_page(fold.take(report=a_report(program=HOSTILE), is_over=True))


def test_hostile_text_stays_within_the_data() -> None:
    text = page()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)

    assert data
    assert json.loads(data[1])["logs"] == [[0, HOSTILE, 0.0]]
    assert text.count("</script>") == 2
    assert "alert(1)</script>" not in text


def test_the_policy_allows_only_the_scripts_and_styles_of_the_page() -> None:
    text = page()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    for element, directive in (("<script>", "script-src"), ("<style>", "style-src")):
        body = re.search(f"{element}(.*?)</{element[1:]}", text, re.DOTALL)
        assert body
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{directive} &#x27;sha256-{digest}&#x27;;" in policy[1]
    assert policy[1].startswith("default-src &#x27;none&#x27;;")
    assert "connect-src" not in policy[1]


def test_nothing_is_loaded_and_no_script_makes_elements_of_text() -> None:
    text = page()

    assert set(re.findall(r"https?://[^\"'` ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r'\sstyle="|\son\w+="', text)


def test_source_lines_come_from_the_working_folder_alone(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
        (folder / "train.py").write_text("".join(f"line {number}\n" for number in range(1, 21)))
    (project / "link.py").symlink_to(elsewhere / "train.py")
    (project / "secret.txt").write_text("secret\n")
    files = (
        project / "train.py",
        elsewhere / "train.py",
        project / "link.py",
        project / "secret.txt",
        project / "no.py",
    )
    checks = tuple(
        CheckResult(id="set-epoch", status="failed", detail="", place=Place(file=str(each), line=10)) for each in files
    )
    fold = PageFold(a_plan(nodes=2))
    message = fold.take(report=a_report(checks=checks), is_over=True)
    sources = Sources(str(project))

    assert sources.named_in(message) == [[str(files[0]), 1, [f"line {number}" for number in range(1, 21)]]]
    assert sources.named_in(message) == []  # once


def test_of_a_long_file_only_the_lines_around_those_that_are_named_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("".join(f"line {number}\n" for number in range(1, 5001)))
    fold = PageFold(a_plan(nodes=2))
    fold.add_events([Event(t=0.0, kind="started")])
    fold.add_spans([Span(0, "waiting", 1.0, 0.5, 1, "all_reduce #1 (train.py, line 3000)", 1)])
    ((file, first, lines),) = Sources(str(tmp_path)).named_in(fold.take(report=a_report(), is_over=True))

    assert file == "train.py"
    assert first <= 2960
    assert lines[3000 - first] == "line 3000"
    assert len(lines) < 1000
