"""The exported stack on a real swarm: three Docker daemons, an overlay network, torchrun, and a sum over all ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from compose_sim.plugins.job_files.core.exports.targets import TARGETS
from tests.contract.bench import until
from tests.plugins.job_files.core.exports.jobs import job, spec_of
from tests.plugins.job_files.core.exports.swarm import IMAGE, running_swarm

NOTE = "it's $(HOME) $5"  # torchrun itself makes one dollar sign of two
SCRIPT = f"""
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
assert sys.argv[1:] == [{NOTE!r}], sys.argv
print("sum", total.item(), os.environ["MODE"], flush=True)
dist.destroy_process_group()
"""
ENDED = {"Complete", "Failed", "Rejected", "Shutdown", "Orphaned"}


def document(folder: Path) -> str:
    """Return the exported stack, with this machine's Python mounted, since its image is empty."""
    spec = spec_of(nodes=3, gpus="none", image=IMAGE, env={"MODE": "a$b"})
    made = yaml.safe_load(TARGETS["swarm"].write(job(spec, arguments=(NOTE,))))
    mounted = {"/usr", "/etc", sys.prefix, str(Path(sys.base_prefix).resolve()), str(folder)}
    for service in made["services"].values():
        service["volumes"] += [{"type": "bind", "source": path, "target": path, "read_only": True} for path in mounted]
        service["environment"] |= {"PATH": f"{sys.prefix}/bin:/usr/bin", "HOME": "/tmp"}
        service["working_dir"] = str(folder)
    return yaml.safe_dump(made)


@pytest.mark.docker
def test_docker_reads_the_stack_as_it_was_meant(tmp_path: Path) -> None:
    (tmp_path / "stack.yaml").write_text(document(tmp_path))

    shown = subprocess.run(
        ["docker", "stack", "config", "-c", "stack.yaml"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    node = yaml.safe_load(shown.stdout)["services"]["node-1"]
    assert node["command"][-1] == NOTE
    assert node["environment"]["MODE"] == "a$b"
    assert (node["deploy"]["endpoint_mode"], node["deploy"]["restart_policy"]["condition"]) == ("dnsrr", "none")


@pytest.mark.docker
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "nsenter", "ip"))), reason="starts Docker daemons"
)
def test_a_stack_trains_on_three_machines_of_a_swarm(tmp_path: Path) -> None:
    folder = Path("/tmp")  # replaced below by the swarm's own
    with running_swarm(3, until) as swarm:
        folder = swarm.folder
        (folder / "train.py").write_text(SCRIPT)
        (folder / "stack.yaml").write_text(document(folder))

        swarm.docker("stack", "deploy", "--resolve-image=never", "--detach=true", "-c", f"{folder}/stack.yaml", "demo")
        until(lambda: len(swarm.tasks("demo")) == 3 and set(swarm.tasks("demo").values()) <= ENDED)
        machines = swarm.docker("stack", "ps", "demo", "--format", "{{.ID}} {{.Node}}").split()
        logs = {number: swarm.output_of(f"demo_node-{number}") for number in range(3)}
        ended = swarm.docker("stack", "ps", "demo", "--no-trunc", "--format", "{{.Name}} {{.CurrentState}} {{.Error}}")

    assert all("sum 6 a$b" in lines for lines in logs.values()), logs
    assert [line.split()[1] for line in ended.splitlines()] == ["Complete"] * 3, (ended, logs)
    assert len(machines) == 6
    assert not folder.exists()
    assert str(folder) not in Path("/proc/mounts").read_text()
    namespaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert swarm.id not in namespaces
