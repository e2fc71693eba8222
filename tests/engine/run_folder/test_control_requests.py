"""The answer to a request for an intervention if the run is over, or ends in the meantime."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from compose_sim.core.faults.commands import Heal, Intervention, Scale
from compose_sim.engine.run_folder.control_requests import ControlRequests, send_request
from compose_sim.engine.run_folder.folder import RunFolder, runs_folder
from compose_sim.errors import ComposesimError, EngineError, SpecError
from tests.contract.bench import until


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(runs_folder(tmp_path) / "demo")
    folder.claim()
    (folder.path / "events").mkdir()
    return folder


class Shell(threading.Thread):
    """Send a request, and keep the outcome."""

    def __init__(self, folder: RunFolder, intervention: Intervention) -> None:
        super().__init__()
        self.folder, self.intervention = folder, intervention
        self.heard: list[str] = []
        self.error: ComposesimError | None = None
        self.start()
        until(lambda: not self.is_alive() or any((folder.path / "requests").glob("*.json")))

    def run(self) -> None:
        try:
            self.heard = [event.kind for event in send_request(self.folder, self.intervention, "r")]
        except ComposesimError as error:
            self.error = error


def test_a_request_is_done_when_its_file_has_gone(folder: RunFolder) -> None:
    folder.append_event("note", reason="from before")
    shell, requests = Shell(folder, Scale(nodes=3)), ControlRequests(folder)

    ((request, file, intervention),) = requests.new()
    again = list(requests.new())
    folder.append_event("scale", id=request, nodes=3, names=[])
    folder.files.remove(file)
    shell.join()

    assert (request, intervention, again) == ("r", Scale(nodes=3), [])
    assert (shell.heard, shell.error) == (["scale"], None)


@pytest.mark.parametrize(("exit_code", "error"), [(2, SpecError), (3, EngineError)])
def test_a_refusal_is_an_error_with_all_its_words(folder: RunFolder, exit_code: int, error: type[Exception]) -> None:
    shell = Shell(folder, Heal())

    folder.append_event("refused", id="r", message="no", evidence="why", hint="what else", exit_code=exit_code)
    requests = ControlRequests(folder)
    ((_, file, _),) = requests.new()
    folder.files.remove(file)
    shell.join()

    assert type(shell.error) is error
    assert shell.error is not None
    assert (shell.error.message, shell.error.evidence, shell.error.hint) == ("no", "why", "what else")


def test_a_run_that_ends_before_is_an_error_and_takes_the_request_with_it(folder: RunFolder) -> None:
    shell = Shell(folder, Heal())

    folder.release()
    shell.join()

    assert type(shell.error) is EngineError
    assert "ended before it handled the request" in shell.error.message
    assert list((folder.path / "requests").iterdir()) == []


def test_a_run_that_is_over_is_not_asked(folder: RunFolder) -> None:
    folder.release()

    with pytest.raises(SpecError, match="the run 'demo' is over"):
        send_request(folder, Heal(), "r")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verb": "explode"}', json.dumps({"verb": "scale", "many": 3})])
def test_what_is_no_request_is_known_as_such(folder: RunFolder, text: str) -> None:
    (folder.path / "requests").mkdir()
    (folder.path / "requests" / "1.r.json").write_text(text)

    assert [(request, intervention) for request, _, intervention in ControlRequests(folder).new()] == [("r", None)]
