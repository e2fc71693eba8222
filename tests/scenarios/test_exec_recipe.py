"""Any command on every node, on both engines."""

from __future__ import annotations

from tests.scenarios.conftest import Project

SCRIPT = """
echo "rank $RANK of $WORLD_SIZE among $COMPOSESIM_NODES, first is $MASTER_ADDR"
if [ $RANK = 0 ]; then cat $COMPOSESIM_HOSTFILE; touch $COMPOSESIM_SHARED/printed; fi
until [ -e $COMPOSESIM_SHARED/printed ]; do sleep 0.1; done
exit $((RANK * 3))
"""


def test_a_command_knows_all_nodes_and_its_status_is_the_verdict(project: Project, engine: str) -> None:
    """Each node has its name, a list of all nodes, and a host file; the first non-zero status is the cause."""
    project.write("hello.sh", SCRIPT)
    run = project.named("exec")

    done = project.run(
        *("up", "--json", "--recipe", "exec", "--engine", engine, "--nodes", "2", "--name", run), "--", "sh", "hello.sh"
    )

    report = done.report
    assert (report["recipe"], report["verdict"], done.status) == ("exec", "failed", 1)
    assert (report["cause"]["rank"], report["cause"]["message"]) == (1, "rank 1 exited with status 3")
    first = "node-0" if engine == "docker" else "127.0.0.1"
    assert project.log_of(run, "node-1.1").strip() == f"rank 1 of 2 among node-0,node-1, first is {first}"
    assert "node-0 slots=1\nnode-1 slots=1\n" in project.log_of(run, "node-0.0")


def test_a_command_that_is_not_there(project: Project) -> None:
    """As in a shell: 127, and the name of the command."""
    run = project.named("missing")

    done = project.run(
        *("up", "--json", "--recipe", "exec", "--engine", "local", "--nodes", "1", "--name", run), "no-such-command"
    )

    assert (done.status, done.report["cause"]["message"]) == (1, "rank 0 exited with status 127 (command not found)")
    assert "'no-such-command'" in project.log_of(run, "node-0.0")
