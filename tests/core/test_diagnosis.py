"""Does `doctor` tell what mends a machine, and does it fail only where no run is possible?"""

from __future__ import annotations

from typing import Any

import pytest

from compose_sim.core.diagnosis import Check, Machine, diagnose, is_fit
from compose_sim.core.inventory import PythonFacts
from tests.builders import a_host, no_docker

NO_TORCH = PythonFacts(executable="/usr/bin/python3", prefixes=("/usr",), has_torch=False)


def a_machine(*, host: dict[str, Any] | None = None, **changes: Any) -> Machine:
    values: dict[str, Any] = {
        "host": a_host(**(host or {})),
        "python_why": "the active virtual environment",
        "default_image": False,
        "bridge": True,
        "free_memory_bytes": 8 << 30,
        "free_disk_bytes": 100 << 30,
        "leftovers": (),
    }
    return Machine(**{**values, **changes})


def the(name: str, machine: Machine) -> Check:
    return next(check for check in diagnose(machine) if check.id == name)


def test_a_good_machine_has_nothing_to_mend() -> None:
    checks = diagnose(a_machine())

    assert {check.status for check in checks} == {"passed"}
    assert [check.hint for check in checks] == [""] * len(checks)


@pytest.mark.parametrize(
    ("host", "fit", "statuses"),
    [
        ({}, True, ("passed", "passed")),
        ({"docker": no_docker()}, True, ("passed", "warned")),
        ({"python": NO_TORCH}, True, ("warned", "passed")),
        ({"python": NO_TORCH, "docker": no_docker()}, False, ("failed", "failed")),
        ({"python": None, "docker": no_docker()}, False, ("failed", "failed")),
    ],
    ids=["both", "no docker", "no torch", "neither", "no python"],
)
def test_one_engine_that_can_run_nodes_is_enough(host: dict[str, Any], fit: bool, statuses: tuple[str, str]) -> None:
    machine = a_machine(host=host)

    assert is_fit(diagnose(machine)) is fit
    assert (the("python", machine).status, the("docker", machine).status) == statuses


@pytest.mark.parametrize("reason", ["the docker command is not installed", "this user may not use the Docker socket"])
def test_docker_is_told_in_the_words_of_what_is_wrong_with_it(reason: str) -> None:
    check = the("docker", a_machine(host={"docker": no_docker(reason)}))

    assert check.detail == f"{reason}; runs take the local engine"
    assert check.hint == "make engine"


@pytest.mark.parametrize(
    ("name", "changes", "hint"),
    [
        ("leftovers", {"leftovers": ("a", "b")}, "composesim prune"),
        ("memory", {"free_memory_bytes": 400 << 20}, "ps aux --sort -rss | head"),
        ("disk", {"free_disk_bytes": 10 << 20}, "composesim down --all --purge deletes finished runs"),
        ("bridge", {"bridge": False}, "sudo modprobe bridge"),
        ("image", {"host": {"python": NO_TORCH}}, "composesim image build"),
    ],
)
def test_what_only_some_runs_need_is_a_warning_with_its_remedy(name: str, changes: dict[str, Any], hint: str) -> None:
    check = the(name, a_machine(**changes))

    assert (check.status, check.hint) == ("warned", hint)
    assert is_fit(diagnose(a_machine(**changes)))
