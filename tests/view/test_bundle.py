"""The bundle of a run holds what a ticket needs, no secret, and nothing that hurts whoever opens it."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.view import bundle as module
from compose_sim.view.bundle import bundle
from tests.builders import a_plan, a_report

KEY = 'pa"ss$wörd\nof two lines'
SECRETS = (KEY, "abc123", "url-pass", "from-words", "from-shell", "in-dotenv", "hf_" + "x" * 20)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Return a finished run whose files are full of secrets."""
    monkeypatch.setenv("MY_TOKEN", "from-shell")
    monkeypatch.setenv("PWD", "/home/ada")  # it is set in every shell
    folder = RunFolder(tmp_path / ".composesim" / "runs" / "demo")
    folder.claim()
    folder.clear(os.getuid(), os.getgid(), token=True)
    plan = a_plan(env={"API_KEY": KEY, "DB_PASSWORD": "abc123", "SHORT_KEY": "q7", "URL": "pg://ada:url-pass@host/db"})
    folder.write_plan(plan)
    folder.write_command(["up", "--env", "API_KEY=x", "train.py", "--token", "from-words"])
    folder.write_report(a_report(program=f"train.py {KEY}"))
    texts = (*SECRETS, folder.read_token(), folder.files.read_text("control/secret"))
    said = "\n".join(
        (*texts, json.dumps(texts), json.dumps(json.dumps(texts)), repr(texts), "SHORT_KEY=q7", "/home/ada/fine")
    )
    folder.files.replace(".env", "SHORT_KEY=q7\nDOT_SECRET='in-dotenv'\n")
    folder.files.replace("docker-compose.yml", said.replace("$", "$$"))
    folder.files.replace("logs/node-0.0.log", said)
    folder.files.replace("observations/node-0.0.0.stacks", said)
    folder.files.replace("events/node-0.jsonl", json.dumps({"kind": "exception", "data": {"message": said}}) + "\n")
    dump = {"entries": [{"frames": [{"filename": f"/home/{SECRETS[1]}.py", "line": 3}], "sizes": ((2, 3),)}]}
    folder.files.replace("observations/flight/rank_0", pickle.dumps(dump))
    folder.release()
    return folder


def unpacked(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_bundle_holds_the_run_and_none_of_its_secrets(run: RunFolder) -> None:
    data = bundle(run)
    files = unpacked(data)

    assert set(files) == {
        *("report.json", "report.html", "plan.json", "command.json", "bundle.json"),
        *("rendered/docker-compose.yml", "rendered/.env", "events/node-0.jsonl", "logs/node-0.0.log"),
        *("observations/node-0.0.0.stacks", "flight/rank_0"),
    }
    texts = {name: content.decode() for name, content in files.items() if name != "flight/rank_0"}
    texts["flight"] = repr(pickle.loads(files["flight/rank_0"]))
    hidden = (*KEY.splitlines(), *SECRETS[1:], "q7", run.read_token(), run.files.read_text("control/secret"))
    for secret in hidden:
        assert [name for name, text in texts.items() if secret in text] == []
    for spelling in (KEY, json.dumps(KEY)[1:-1], json.dumps(KEY, ensure_ascii=False)[1:-1], KEY.replace("$", "$$")):
        assert [name for name, text in texts.items() if spelling in text] == []
    assert all("/home/ada/fine" in texts[name] for name in ("logs/node-0.0.log", "rendered/docker-compose.yml"))
    assert json.loads(texts["command.json"])["words"] == ["up", "--env", "API_KEY=***", "train.py", "--token", "***"]
    assert json.loads(texts["report.json"])["verdict"] == "passed"
    assert json.loads(texts["events/node-0.jsonl"])["kind"] == "exception"
    assert pickle.loads(files["flight/rank_0"])["entries"][0]["sizes"] == ((2, 3),)
    assert bundle(run) == data


class Trap:
    """What runs a command when it is read."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("trapped",))


def test_what_a_hostile_run_left_stays_out(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private").write_text("private words")
    logs, flight = run.path / "logs", run.path / "observations" / "flight"
    (logs / "link.log").symlink_to(tmp_path / "private")
    (logs / "..\\..\\evil.log").write_text("evil words")
    os.mkfifo(logs / "pipe.log")
    bomb: list[object] = []
    for _ in range(40):
        bomb = [bomb, bomb]
    flight.joinpath("rank_1").write_bytes(pickle.dumps(Trap()))
    flight.joinpath("rank_2").write_bytes(pickle.dumps(bomb))
    flight.joinpath("rank_3").write_bytes(b"\x80\x04no pickle")
    monkeypatch.chdir(tmp_path)
    files = unpacked(bundle(run))

    assert not (tmp_path / "trapped").exists()
    assert {name for name in files if name.startswith(("logs", "flight"))} == {"logs/node-0.0.log", "flight/rank_0"}
    assert not any(b"private words" in content or b"evil words" in content for content in files.values())
    left_out = json.loads(files["bundle.json"])["left_out"]
    assert {"flight/rank_1", "flight/rank_2", "flight/rank_3"} < set(left_out)
    assert any("evil" in name for name in left_out)


def test_long_files_keep_their_ends_and_a_full_bundle_says_what_is_missing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"line {number}" for number in range(10_000)]
    run.files.replace("logs/node-0.0.log", "\n".join(lines))
    monkeypatch.setattr(module, "_MAX_BYTES_OF_FILE", 5000)
    shown = unpacked(bundle(run))["logs/node-0.0.log"].decode().splitlines()
    cut = next(at for at, line in enumerate(shown) if line.startswith("[composesim: "))

    assert shown[:cut] == lines[:cut]
    assert shown[cut + 1 :] == lines[len(lines) - len(shown) + cut + 1 :]

    monkeypatch.setattr(module, "_MAX_BYTES", 100)
    files = unpacked(bundle(run))
    assert "logs/node-0.0.log" not in files
    assert json.loads(files["bundle.json"])["left_out"]["logs/node-0.0.log"]
