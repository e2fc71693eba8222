"""Job files of clusters as requests: the project, the script in it, flags, and limits of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose_sim.app.request import Request, read_request
from compose_sim.core.plan.capacity import fit
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError

SBATCH = "#!/bin/bash\n#SBATCH -N 3 --cpus-per-task=64 --mem=2T\nsrun torchrun --nproc-per-node 2 {script} --epochs 3\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a job file below it."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(project: Path, named: str = "/workspace/src/train.py", **given: object) -> Request:
    file = project / "jobs" / "train.sbatch"
    file.write_text(SBATCH.format(script=named))
    return read_request(given, file=Path("jobs/train.sbatch"))


def test_the_project_is_the_current_folder_and_has_the_script(project: Path) -> None:
    made = request(project)

    assert (made.folder, made.spec.script, made.spec.args) == (project, "src/train.py", ("--epochs", "3"))
    assert made.job_file is not None
    assert [(note.verdict, note.line) for note in made.job_file.notes if note.key == "script"] == [("changed", 3)]


def test_flags_win_over_the_file(project: Path) -> None:
    made = request(project, nodes="4", memory="1g", script="src/train.py")

    assert (made.spec.nodes, made.spec.memory, made.spec.args, made.spec.nproc_per_node) == (4, 1 << 30, (), 2)
    assert "memory" not in made.scalable
    assert made.job_file is not None
    ignored = {note.text.partition(" ")[0] for note in made.job_file.notes if note.verdict == "ignored"}
    assert ignored == {"nodes", "memory", "script", "args"}


def test_a_script_that_the_project_lacks_is_named_with_its_line(project: Path) -> None:
    with pytest.raises(SpecError) as caught:
        request(project, "other.py")

    assert caught.value.message.startswith("jobs/train.sbatch, line 3: ")
    assert caught.value.hint.endswith("-f jobs/train.sbatch other.py --epochs 3")


def test_a_value_that_no_spec_can_have_is_named_with_its_line(project: Path) -> None:
    (project / "job.sh").write_text("#!/bin/bash\n#SBATCH --mem=1K\npython src/train.py\n")

    with pytest.raises(SpecError) as caught:
        read_request({}, file=Path("job.sh"))

    assert caught.value.message.startswith("job.sh, line 2: memory")


def test_limits_are_lowered_to_the_share_of_a_node(project: Path) -> None:
    made = request(project)

    spec, choices = fit(made.spec, made.scalable, cpus=6, memory_bytes=12 << 30, has_docker=True)

    assert (spec.cpus, spec.memory) == (2, 4 << 30)
    assert [choice.what for choice in choices] == ["cpus", "memory"]


def test_limits_that_the_machine_can_honor_stay() -> None:
    asked = ClusterSpec(nodes=2, cpus=1, memory="1g")

    assert fit(asked, {"cpus", "memory"}, cpus=2, memory_bytes=2 << 30, has_docker=True) == (asked, ())


def test_processes_get_no_limits(project: Path) -> None:
    made = request(project)

    spec, choices = fit(made.spec, made.scalable, cpus=6, memory_bytes=12 << 30, has_docker=False)

    assert (spec.cpus, spec.memory, {choice.what for choice in choices}) == (None, None, {"cpus", "memory"})
