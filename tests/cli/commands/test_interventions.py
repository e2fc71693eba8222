"""The output and exit status of the verbs that intervene in a run."""

from __future__ import annotations

import json

from compose_sim.core.faults.kinds import KINDS
from tests.cli.conftest import Live, Project
from tests.contract.bench import until


def test_a_fault_is_told_in_one_line_or_as_json_and_healed(waiting: Live) -> None:
    """Use a rank: a node that is frozen is soon lost, and this run with it."""
    log = waiting.folder / "logs" / "node-1.1.log"
    until(lambda: log.exists() and "begun" in log.read_text())
    told = json.loads(waiting.project.run("fault", "rank-stop", "1", "--json", "--run", waiting.run).stdout)
    again = waiting.project.run("fault", "rank-stop", "1", "--run", waiting.run)
    healed = waiting.project.run("heal", "1", "--run", waiting.run)
    nothing = waiting.project.run("heal", "--json")

    assert {key: told[key] for key in ("kind", "nodes", "rank", "text", "for_s")} == {
        "kind": "rank-stop",
        "nodes": [],
        "rank": 1,
        "text": "rank 1 on node-1 stopped (SIGSTOP)",
        "for_s": None,
    }
    assert again.returncode == 2
    assert (
        f"Error: {told['id']} is already active: rank 1 on node-1 stopped (SIGSTOP)\nTry: composesim heal {told['id']}"
        in again.stderr
    )
    assert (healed.returncode, healed.stdout) == (0, f"healed {told['id']}\n")
    assert nothing.returncode == 2
    assert json.loads(nothing.stdout)["error"]["message"] == f"the run '{waiting.run}' has no active faults"


def test_requests_that_make_no_sense_are_refused(waiting: Live) -> None:
    """The error comes from the verb itself, or from the process of the run."""
    wrong = {
        ("fault", "kill", "node-7"): "there is no node 'node-7' in the run",
        ("fault", "cpu", "1", "--limit", "0.5"): "'cpu' is not supported on the local engine",
        ("fault", "kill", "1", "--for", "soon"): "'soon' is not a duration",
        ("fault", "explode", "1"): "unknown fault 'explode'",
        ("scale", "3"): "is not elastic: its size is fixed at 2 nodes",
    }
    for words, message in wrong.items():
        done = waiting.project.run(*words)
        assert done.returncode == 2, words
        assert message in done.stderr


def test_a_killed_node_fails_a_run_that_is_not_elastic_and_then_nothing_can_be_broken(live: Live) -> None:
    killed = live.project.run("fault", "kill", "1")
    report = live.project.run("wait", "--run", live.run)
    late = live.project.run("fault", "kill", "0", "--run", live.run)

    assert (killed.returncode, killed.stdout.endswith(": node-1 killed\n")) == (0, True)
    assert report.returncode == 1
    assert late.returncode == 2
    assert f"the run '{live.run}' is over" in late.stderr


def test_the_list_of_faults_says_what_each_engine_can_do(project: Project) -> None:
    faults = {fault["kind"]: fault for fault in json.loads(project.run("fault", "list", "--json").stdout)["faults"]}

    assert list(faults) == list(KINDS)
    assert faults["kill"]["can"]["local"]
    assert not faults["cpu"]["can"]["local"]
    assert faults["cpu"]["lacks"]["local"] == "nodes of the local engine share with the host what the fault would break"
    assert all(
        fault["can"][engine] == (not fault["lacks"][engine]) for fault in faults.values() for engine in fault["can"]
    )
