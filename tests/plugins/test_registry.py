"""Features are found by group and name: those in `compose_sim/plugins` first, then those of other distributions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from compose_sim.cli import VERBS, group
from compose_sim.cli.commands.machine import _frameworks
from compose_sim.core.checks.run import run_checks
from compose_sim.core.faults.parse import find_kind, parse_fault
from compose_sim.core.request.names import CHECK_IDS
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.scenarios.scenario import parse_scenario
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import built_in, find, installed
from tests.builders import a_plan
from tests.core.checks.rules.cluster import case
from tests.test_architecture import MODULES, PLUGINS, imports

COMMANDS = "composesim.commands"
AUDIT = """
import click

@click.command()
def command():
    click.echo("nothing found")
"""

FAULT = """
from dataclasses import replace
from compose_sim.core.faults.kinds import KINDS

doze = replace(KINDS["kill"], name="doze", summary="Kill a node under another name.")
"""
SERVICE = """
from compose_sim.core.plan.model import PlannedService

VALUE, PACKAGES, NEEDS = "a folder", {"notes": "1.0"}, ()

def containers(context):
    return (PlannedService(name="notes", command=(context.python, "-m", "notes", context.value)),)
"""
CHECK = """
from compose_sim.core.checks import check, failed, passed

@check("small-world", "Are there more than two ranks?", page="# small-world")
def small_world(case):
    few = case.observed.world_size <= 2
    return failed("there are only two ranks", fix="--nodes 3") if few else passed("enough ranks")
"""
ENTRIES = f"""
[{COMMANDS}]
audit = outside_audit:command
broken = outside_broken

[composesim.faults]
doze = outside_fault:doze
wrong = outside_fault:replace

[composesim.checks]
small-world = outside_check:small_world
wrong = outside_check:check

[composesim.services]
notes = outside_service
wrong = outside_fault
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another distribution, with two commands, of which one cannot be imported, a fault, a check and a service."""
    (tmp_path / "outside_audit.py").write_text(AUDIT)
    (tmp_path / "outside_fault.py").write_text(FAULT)
    (tmp_path / "outside_check.py").write_text(CHECK)
    (tmp_path / "outside_service.py").write_text(SERVICE)
    (tmp_path / "outside_broken.py").write_text("1 / 0\n")
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    yield
    installed.cache_clear()


@pytest.mark.usefixtures("outside")
def test_a_command_of_another_distribution_runs_as_a_verb() -> None:
    done = CliRunner().invoke(group, ["audit"])

    assert (done.exit_code, done.output) == (0, "nothing found\n")
    assert set(installed(COMMANDS)) == {"audit", "broken"}


@pytest.mark.usefixtures("outside")
def test_a_feature_that_cannot_be_imported_is_named() -> None:
    feature = find(COMMANDS, "broken")
    assert feature

    with pytest.raises(SpecError, match=r"command 'broken' \(outside_broken\) cannot be loaded: ZeroDivisionError"):
        feature.load()


@pytest.mark.usefixtures("outside")
def test_a_fault_of_another_distribution_is_parsed_and_can_be_in_a_scenario() -> None:
    plan = a_plan(nodes=2)

    fault = parse_fault("doze", ["node-1"], {}, plan=plan, for_s=3)
    scenario = parse_scenario("steps: [{at: {time: 1s}, fault: {kind: doze, node: node-1}}]", "doze.yaml", {})

    assert (fault.kind, fault.nodes) == ("doze", ("node-1",))
    assert scenario.steps[0].fault is not None
    with pytest.raises(SpecError, match=r"fault 'wrong' .* is invalid: it is not the FaultKind 'wrong'"):
        find_kind("wrong")


@pytest.mark.usefixtures("outside")
def test_a_check_of_another_distribution_takes_part() -> None:
    explained = CliRunner().invoke(group, ["check", "--explain", "small-world"])
    spec = ClusterSpec.model_validate({"script": "train.py", "check": {"only": "small-world"}})
    finished = case({0: [], 1: []})

    assert (explained.exit_code, explained.output) == (0, "# small-world\n")
    (result,) = run_checks(finished, only=spec.check.only)
    assert (result.id, result.status, result.fix) == ("small-world", "failed", "--nodes 3")
    everything = {each.id: each for each in run_checks(finished, skip=("small-world",))}
    assert "'wrong' is not a ScriptCheck" in everything["wrong"].detail
    assert list(everything) == [*CHECK_IDS, "wrong"]


@pytest.mark.usefixtures("outside")
def test_a_service_of_another_distribution_is_planned() -> None:
    plan = a_plan(image="torch:1", **{"with": "notes=drafts"})

    assert [each.command[1:] for each in plan.services] == [("-m", "notes", "drafts")]
    with pytest.raises(ValidationError, match="there is no service 'note'; did you mean 'notes'"):
        a_plan(**{"with": "note"})
    with pytest.raises(SpecError, match=r"service 'wrong' .* is invalid: it has no VALUE, PACKAGES, NEEDS, containers"):
        a_plan(**{"with": "wrong"})


@pytest.mark.usefixtures("outside")
def test_an_image_gets_the_packages_of_a_service_of_another_distribution() -> None:
    (framework,) = _frameworks("notes")

    assert (framework.name, framework.requirements) == ("notes", ("notes>=1.0",))


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_table_of_a_plug_in_names_what_can_be_loaded(plugin: str) -> None:
    table = importlib.import_module(f"compose_sim.plugins.{plugin}").ENTRY_POINTS

    assert table
    for kind, features in table.items():
        for name in features.keys() & built_in(kind).keys():  # without what needs a plug-in that was deleted
            assert built_in(kind)[name].load() is not None
            assert built_in(kind)[name].value.startswith(f"compose_sim.plugins.{plugin}.")
            assert kind != COMMANDS or (
                built_in(kind)[name].summary.endswith(".") and built_in(kind)[name].after in VERBS
            )


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_table_of_a_plug_in_imports_nothing(plugin: str) -> None:
    assert imports(MODULES[f"compose_sim.plugins.{plugin}"]) == set()
