"""The files that `composesim init` writes work unchanged, and each commented line is valid."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from compose_sim.core.request.spec import ClusterSpec
from tests.builders import PATIENCE_S

INIT = Path(__file__).resolve().parents[2] / "templates" / "init"
TEXT = (INIT / "composesim.yaml").read_text()


def uncommented(text: str) -> str:
    """Return the same document with every commented key enabled; `nodes` then has the second form, a list."""
    body = text.split("\n\n", 1)[1].replace("nodes: 2 ", "# one number: ")
    return re.sub(r"^# (?=\w+: |\w+:$|  )", "", body.replace("# one number:", "## one number:"), flags=re.MULTILINE)


def test_as_written_it_asks_for_nodes_and_a_script_and_nothing_else() -> None:
    spec = ClusterSpec.model_validate(yaml.safe_load(TEXT))

    assert spec == ClusterSpec(nodes=2, script="train.py")


def test_an_editor_is_told_where_the_schema_is() -> None:
    assert TEXT.splitlines()[0] == "# yaml-language-server: $schema=composesim.schema.json"


def test_with_every_comment_removed_it_is_still_a_spec() -> None:
    shown = yaml.safe_load(uncommented(TEXT))
    spec = ClusterSpec.model_validate(shown)

    assert shown.keys() >= {"nodes", "nproc_per_node", "engine", "image", "python", "backend", "launcher"}
    assert shown.keys() >= {"env", "env_file", "mounts", "memory", "cpus", "timeout", "script", "args"}
    assert [node.nproc_per_node for node in spec.node_specs[: spec.initial_node_count]] == [2, None]


def test_commented_defaults_are_the_defaults() -> None:
    """Removing a `#` without changing anything must give the same run as before."""
    shown = yaml.safe_load(uncommented(TEXT))

    for key in ("nproc_per_node", "engine", "image", "backend", "launcher"):
        assert shown[key] == ClusterSpec.model_fields[key].default, key


@pytest.mark.train
def test_the_script_learns_on_two_ranks() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, str(INIT / "train.py")], capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 0, done.stderr
    metrics = [json.loads(line) for line in done.stdout.splitlines()]
    assert metrics[-1]["step"] == 80
    assert metrics[-1]["loss"] < metrics[0]["loss"] / 5
