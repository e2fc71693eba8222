"""Plans as Compose documents: golden files, lossless quoting, and the published schema."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compose_sim.core.compose.document import (
    InvalidDocumentError,
    check_document,
    quote,
    render_document,
    render_settings,
)
from compose_sim.core.host.host import NO_GPUS
from compose_sim.core.plan.model import Plan
from compose_sim.core.request.names import RECIPE_NAMES
from tests.builders import ROOT, a_host, a_plan
from tests.inventories import CDI, FOUR, MIG, RAW, SCATTERED, h200s

GOLDEN = ROOT / "tests" / "golden"
FOLDERS = {path.name: path for path in (*GOLDEN.iterdir(), *(ROOT / "tests" / "plugins").glob("*/golden/*"))}
OF_PLUG_INS = {
    name: yaml.safe_load((path / "composesim.yaml").read_text())
    for name, path in FOLDERS.items()
    if path.parent != GOLDEN
}
SCHEMA = json.loads((ROOT / "templates" / "schema" / "compose-spec.json").read_text())

# Each case: a folder in tests/golden, owned by the test of the same name. Plug-ins have a composesim.yaml in such a folder.
CASES: dict[str, dict[str, Any]] = {
    "two-nodes": {},
    "limits-and-mounts": {"nodes": 3, "memory": "2g", "cpus": 0.5, "mounts": ["/data:/data:ro"], "shm_size": "256m"},
    "unequal-nodes": {"nodes": [{"nproc_per_node": 2, "memory": "4g"}, {"env": {"ROLE": "small"}}]},
    "a-disk-of-its-own": {"scratch": "64m"},
    "an-image": {"image": "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime", "nproc_per_node": 2},
    "awkward-values": {
        "env": {
            "PRICE": "$5 ${HOME} $$",
            "YES": "on",
            "NO": "no",
            "QUOTES": "a'b\"c\\",
            "LINES": "a\nb\n",
            "HASH": "a #b",
        },
        "args": ["--name", "Ærøskøbing 🚲", "--flag=$x", ""],
    },
    "torchrun-launcher": {"launcher": "torchrun", "max_restarts": 3, "nproc_per_node": 4},
    "bare-processes": {"launcher": "env", "nodes": 4},
    "rendered": {"portable": True, "image": "torch:1", "nodes": 2},
    "gpus-nvidia": {"gpus_of": FOUR, "nodes": 2, "gpus_per_node": 2, "image": "torch:1"},
    "gpus-cdi": {"gpus_of": h200s(2, toolkit=CDI), "nodes": [{}, {"gpus": "none"}, {}], "image": "torch:1"},
    "gpus-raw": {"gpus_of": h200s(2, toolkit=RAW), "nodes": 2, "image": "torch:1"},
    "gpus-mps": {"gpus_of": h200s(1, toolkit=SCATTERED), "nodes": 9, "image": "torch:1"},
    "gpus-own-driver": {"gpus_of": h200s(2, toolkit=SCATTERED), "nodes": 2},
    "gpus-mig": {"gpus_of": replace(MIG, toolkit=RAW), "nodes": 2},
    **{name: spec for name, spec in OF_PLUG_INS.items() if spec.get("recipe", "ddp") in RECIPE_NAMES},
}


def the_plan(case: str) -> Plan:
    """The machine has no GPUs, unless the case is about GPUs."""
    spec = dict(CASES[case])
    inventory = spec.pop("gpus_of", NO_GPUS)
    return a_plan(a_host(gpus=inventory), **spec)


def document(plan: Plan, *, folder: str = "/home/ada/project/.composesim/runs/demo", **options: Any) -> str:
    return render_document(plan, loader=jinja2.FileSystemLoader(ROOT), folder=folder, **options)


@pytest.mark.parametrize("case", CASES)
def test_document_is_as_reviewed(case: str, update_golden: bool) -> None:
    """The file is the product: every change to it is reviewed as a diff."""
    text = document(the_plan(case))
    golden = FOLDERS.get(case, GOLDEN / case) / "docker-compose.yml"
    if update_golden:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)

    assert text == golden.read_text()


def test_every_golden_folder_is_owned() -> None:
    assert {folder.name for folder in GOLDEN.iterdir()} == set(CASES) - set(OF_PLUG_INS)


@pytest.mark.parametrize("case", CASES)
def test_document_obeys_the_compose_schema(case: str) -> None:
    check_document(document(the_plan(case)), SCHEMA)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    hostname: node-1\n", "    hostnam: node-1\n"),
        ("    hostname: node-1\n", "    hostname: [node-1]\n"),
        ('"COMPOSESIM_NODE_RANK": "1"', '"COMPOSESIM_NODE_RANK": ["1"]'),
        ("  node-1:\n", "  node~1:\n"),
        ("  node-1:\n", "  node-1:\n    node-1\n"),
    ],
)
def test_one_wrong_node_among_many_breaks_the_schema(right: str, wrong: str) -> None:
    text = document(a_plan(nodes=3))
    assert text.count(right) == 1
    text = text.replace(right, wrong)

    with pytest.raises((InvalidDocumentError, yaml.YAMLError)):
        check_document(text, SCHEMA)


def test_least_privilege_holds_for_every_service() -> None:
    """No capability, no new privilege, read-only root, nothing published, no host namespace."""
    services = yaml.safe_load(document(a_plan()))["services"]

    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True
        assert not {"ports", "privileged", "cap_add", "network_mode", "pid", "ipc", "devices"} & set(service)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_quoted_text_comes_back_from_yaml(text: str) -> None:
    """Compose halves every `$$` once YAML has read the scalar."""
    assert yaml.safe_load(quote(text)).replace("$$", "$") == text


@pytest.mark.docker
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=40, max_size=40))
def test_values_come_back_from_docker_compose(tmp_path: Path, values: list[str]) -> None:
    """Environment variables and arguments come back from `docker compose config` unchanged, character for character."""
    values += [
        "on",
        "no",
        "null",
        "~",
        "1e3",
        "0x1f",
        "'",
        '"',
        "$",
        "$$",
        "${A}",
        "#",
        " #",
        "\n",
        "\t",
        "\\",
        "🚲",
        "\u2028",
        "\x85",
        "",
    ]
    environment = {f"V{number}": value for number, value in enumerate(values)}
    plan = a_plan(nodes=1, env=environment, args=values, image="torch:1")
    (tmp_path / "docker-compose.yml").write_text(document(plan), newline="")
    (tmp_path / ".env").write_text(render_settings(plan, image="torch:1"))
    argv = ["docker", "compose", "--project-directory", str(tmp_path), "config", "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    node = json.loads(done.stdout)["services"]["node-0"]

    # `config` prints a document again, with every dollar sign doubled once more.
    assert {name: node["environment"][name].replace("$$", "$") for name in environment} == environment
    assert [word.replace("$$", "$") for word in node["command"][-len(values) :]] == values


@pytest.mark.docker
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("gpus-")])
def test_docker_compose_takes_every_way_to_bind_gpus(case: str, tmp_path: Path) -> None:
    """Named devices come back as they were written; a count never appears next to them."""
    plan = the_plan(case)
    (tmp_path / "docker-compose.yml").write_text(document(plan))
    (tmp_path / ".env").write_text(render_settings(plan, image="torch:1"))
    argv = ["docker", "compose", "--project-directory", str(tmp_path), "config", "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]

    for node in plan.nodes:
        service, gpus = services[node.name], node.gpus
        reserved = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        assert gpus
        assert [each for request in reserved for each in request["device_ids"]] == [*gpus.device_ids]
        assert [each["source"] for each in service.get("devices", [])] == [*gpus.device_files]
        assert not any("count" in request for request in reserved)
        assert service.get("ipc") == ("service:mps" if node.joins_mps else None)


def test_a_thousand_nodes_share_what_is_equal() -> None:
    """The part that all nodes have in common occurs once in the file."""
    text = document(a_plan(a_host(), nodes=1000))

    assert text.count("cap_drop") == 1
    assert len(text) < 1200 * 1000
