"""Ports of this machine: which are chosen for what a run publishes."""

from __future__ import annotations

import pytest

from compose_sim.core.plan.model import PlannedPort
from compose_sim.core.plan.services import choose_ports
from compose_sim.errors import SpecError
from tests.builders import a_plan

JUPYTER = PlannedPort(name="jupyter", port=8888, path="/lab?token={token}")
OTHER = PlannedPort(name="other", port=8889)


def test_the_well_known_port_needs_no_word() -> None:
    ports, choices = choose_ports([JUPYTER], requested={}, listening={8887: "x"}, shared=False)

    assert (ports["jupyter"].port, ports["jupyter"].host_port, choices) == (8888, 8888, ())


def test_the_next_free_port_is_said() -> None:
    listening = {8888: "python3 (process 42)", 8889: "the container grafana"}

    ports, choices = choose_ports([JUPYTER, OTHER], requested={}, listening=listening, shared=False)

    assert [port.host_port for port in ports.values()] == [8890, 8891]
    assert [port.port for port in ports.values()] == [8888, 8889]
    assert [(choice.value, choice.why) for choice in choices] == [
        ("jupyter 8890", "8888 is in use by python3 (process 42)"),
        ("other 8891", "8889 is in use by the container grafana"),
    ]


def test_on_the_local_engine_who_publishes_listens_on_the_chosen_port() -> None:
    ports, _ = choose_ports([JUPYTER], requested={}, listening={8888: "x"}, shared=True)

    assert (ports["jupyter"].port, ports["jupyter"].host_port) == (8889, 8889)


def test_a_port_that_is_asked_for_is_nobody_elses() -> None:
    ports, choices = choose_ports([JUPYTER, OTHER], requested={"other": 8888}, listening={}, shared=False)

    assert (ports["other"].host_port, ports["jupyter"].host_port) == (8888, 8889)
    assert [choice.why for choice in choices] == ["8888 is in use by 'other' of this run"]


def test_a_run_without_services_publishes_nothing() -> None:
    with pytest.raises(SpecError, match="--publish 'grafana': this run publishes nothing"):
        a_plan(image="torch:1", publish={"grafana": 3001})
