"""Services beside the nodes: which are requested, what each may do, which ports they publish, and how users reach them."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
import yaml
from pydantic import ValidationError

from compose_sim.core.compose.dockerfile import Image, render_dockerfile
from compose_sim.core.compose.document import render_service_files
from compose_sim.core.host.host import PythonFacts
from compose_sim.core.plan.model import Plan, PlannedPort, plan_from_dict
from compose_sim.core.plan.recipes import exec
from compose_sim.core.plan.services import load_service, requested_services
from compose_sim.core.report.report import PublishedService, link, login, published_services, tunnel
from compose_sim.core.request.names import SERVICE_NAMES
from compose_sim.errors import EnvironmentMissingError, SpecError
from compose_sim.plugins.services.core import jupyter
from tests.builders import ROOT, a_host, a_plan, no_docker
from tests.core.compose.test_dockerfile import DIGEST
from tests.core.compose.test_document import document

REQUIREMENTS = ROOT / "compose_sim" / "plugins" / "services" / "templates" / "image" / "requirements"
TOKEN = "5ec3e7"
ALL = {"with": "jupyter,tensorboard,prometheus,grafana", "image": "torch:1"}


def services_of(plan: Plan) -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(document(plan))["services"]
    return services


def test_services_are_beside_the_nodes_and_none_of_them() -> None:
    plan = a_plan(**ALL)

    assert [node.name for node in plan.nodes] == ["node-0", "node-1"]
    assert plan.world_size == 2
    assert [each.name for each in plan.services] == [
        "jupyter",
        "tensorboard",
        "prometheus",
        "prometheus-server",
        "grafana",
    ]
    assert plan_from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_every_service_is_held_as_nodes_are() -> None:
    """No capability, no new privilege, a read-only root; labels mark them as services, not nodes."""
    services = services_of(a_plan(**ALL))

    for name in set(services) - {"master", "node-0", "node-1"}:
        service = services[name]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True
        assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & set(service)
        assert service["labels"]["composesim.role"] == "service"
        assert service["labels"]["composesim.run"] == "demo"
        assert "composesim.node" not in service["labels"]


def test_only_loopback_is_published_and_only_by_who_was_asked_for() -> None:
    services = services_of(a_plan(**ALL))

    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {
        "jupyter": ["127.0.0.1:8888:8888"],
        "tensorboard": ["127.0.0.1:6006:6006"],
        # Grafana shares the network of Prometheus, so only Prometheus can publish ports.
        "prometheus": ["127.0.0.1:9090:9090", "127.0.0.1:3000:3000"],
    }


def test_what_asks_for_no_token_listens_on_loopback_behind_the_gate() -> None:
    services = services_of(a_plan(**ALL))

    for name in ("tensorboard", "prometheus"):
        assert services[name]["command"][2] == "auth-proxy"
    board = services["tensorboard"]["command"]
    assert board[board.index("--host") + 1] == "127.0.0.1"
    server = services["prometheus-server"]
    assert "--web.listen-address=127.0.0.1:9091" in server["command"]
    assert server["network_mode"] == "service:prometheus"


def test_nodes_of_rounds_do_not_see_the_token_that_services_ask_for() -> None:
    plan = a_plan(**ALL)
    services = services_of(plan)

    def targets(name: str) -> set[str]:
        return {volume["target"] for volume in services[name]["volumes"]}

    assert plan.has_token
    assert "/composesim/secrets" not in targets("node-0") | targets("master") | targets("prometheus-server")
    assert all("/composesim/secrets" in targets(name) for name in ("jupyter", "tensorboard", "prometheus", "grafana"))
    assert not a_plan().has_token


def test_only_the_notebook_may_write_to_the_persons_files() -> None:
    services = services_of(a_plan(**ALL))

    writable = {
        name: {volume["target"] for volume in services[name]["volumes"] if not volume.get("read_only")}
        for name in ("jupyter", "tensorboard", "prometheus", "prometheus-server", "grafana")
    }
    assert writable.pop("jupyter") == {"/home/ada/project", "/composesim/shared"}
    assert not any(writable.values())


def test_foreign_images_are_told_nothing_of_the_persons_environment() -> None:
    services = services_of(a_plan(**ALL, env={"PASSWORD": "hunter2"}))

    assert services["jupyter"]["environment"]["PASSWORD"] == "hunter2"
    for name in ("prometheus-server", "grafana"):
        assert "PASSWORD" not in services[name].get("environment", {})
        assert "env_file" not in services[name]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((), {}),
        (("tensorboard", "jupyter"), {"jupyter": "", "tensorboard": ""}),
        (("grafana",), {"prometheus": "", "grafana": ""}),
        (("grafana=g:1", "prometheus=p:2"), {"prometheus": "p:2", "grafana": "g:1"}),
    ],
)
def test_what_a_service_needs_comes_with_it(texts: tuple[str, ...], expected: dict[str, str]) -> None:
    assert requested_services(texts) == expected


def test_images_and_folders_can_be_named() -> None:
    plan = a_plan(**{**ALL, "with": ["prometheus=mine:2", "tensorboard=lightning_logs"]})

    images = {service.name: service.image for service in plan.services}
    assert images == {"tensorboard": "", "prometheus": "", "prometheus-server": "mine:2"}
    assert "shared:/composesim/shared,project:/home/ada/project/lightning_logs" in plan.services[0].command


@pytest.mark.parametrize("name", SERVICE_NAMES)
def test_a_service_says_what_it_takes_and_opens(name: str) -> None:
    service = load_service(name)
    plan = a_plan(**{**ALL, "with": [name]})

    assert set(service.NEEDS) <= set(SERVICE_NAMES)
    own = next(each for each in plan.services if each.name == name)
    assert [port.name for port in own.ports] == [name]
    assert "{token}" in own.ports[0].path + own.ports[0].login


def test_a_service_wants_its_packages_in_the_nodes_python() -> None:
    bare = PythonFacts(executable="/usr/bin/python3", prefixes=("/usr",), packages={"torch": "2.13.0"})

    with pytest.raises(EnvironmentMissingError) as raised:
        a_plan(a_host(python=bare), **{"with": "jupyter", "image": "host"})

    assert raised.value.message == "/usr/bin/python3 has no jupyterlab"
    assert "pip install torch jupyterlab" in raised.value.hint


def test_the_local_engine_has_no_services() -> None:
    with pytest.raises(SpecError, match="the local engine does not support --with"):
        a_plan(engine="local", **{"with": "jupyter"})
    with pytest.raises(EnvironmentMissingError, match="--with needs the docker engine"):
        a_plan(a_host(docker=no_docker()), **{"with": "jupyter"})


def test_a_taken_port_names_its_owner_and_a_command_to_type() -> None:
    taken = {9999: "python3 (process 42)", 10000: "x"}

    with pytest.raises(SpecError) as raised:
        a_plan(a_host(listening=taken), **ALL, publish={"jupyter": 9999})

    assert raised.value.message == ("port 9999 for 'jupyter' is in use by python3 (process 42)")
    assert raised.value.hint.startswith("composesim up --publish jupyter=10001 …")


def test_one_port_cannot_be_asked_for_twice() -> None:
    with pytest.raises(SpecError, match=r"port 9999 .* is in use by 'jupyter' of this run"):
        a_plan(**ALL, publish={"jupyter": 9999, "grafana": 9999})


def test_a_port_is_of_something_that_is_published() -> None:
    with pytest.raises(SpecError, match="--publish 'grafana': this run publishes jupyter") as raised:
        a_plan(**{**ALL, "with": "jupyter"}, publish={"grafana": 3001})

    assert raised.value.hint == "composesim up --with jupyter …"


@pytest.mark.parametrize("option", [{"with": ["tensorboard"]}, {"with": ["jupyter"], "publish": {"jupyter": 9999}}])
def test_an_isolated_run_publishes_nothing(option: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        a_plan(network="isolated", **option)

    assert "--network open" in caught.value.hint


def test_a_misspelled_service_is_named() -> None:
    with pytest.raises(ValidationError, match="there is no service 'tensorbord'; did you mean 'tensorboard'"):
        a_plan(**{"with": "tensorbord"})


def test_containers_with_the_project_do_not_see_its_runs() -> None:
    services = services_of(a_plan(**ALL))

    mounts = [{each["target"]: each for each in service.get("volumes", [])} for service in services.values()]
    seeing = [each for each in mounts if "/home/ada/project" in each]
    covers = [each["/home/ada/project/.composesim"] for each in seeing]
    assert len(seeing) >= 3
    assert {(cover["source"], cover["read_only"]) for cover in covers} == {("./empty", True)}


def test_images_of_others_are_named_by_digest() -> None:
    images = {name: image for name in SERVICE_NAMES if (image := getattr(load_service(name), "IMAGE", ""))}

    assert images.keys() == {"prometheus", "grafana"}
    assert [image for image in images.values() if not DIGEST.fullmatch(image)] == []


def test_what_an_image_gets_is_pinned_in_a_file() -> None:
    names = [name for name in SERVICE_NAMES if load_service(name).PACKAGES]

    assert [name for name in names if "==" not in (REQUIREMENTS / f"{name}.txt").read_text()] == []


def test_what_a_service_brings_and_is_not_wanted_is_taken_out_after_it_came() -> None:
    text = render_dockerfile(Image(frameworks=jupyter.FRAMEWORKS), loader=jinja2.FileSystemLoader(ROOT))

    assert text.index("requirements/jupyter.txt") < text.index(
        "RUN python3 -m pip uninstall --yes rfc3987-syntax lark\n"
    )


def test_a_rendered_file_asks_nothing_of_this_machine() -> None:
    plan = a_plan(a_host(listening={8888: "x"}), **ALL, portable=True)

    assert [port.host_port for port in plan.published] == [8888, 6006, 9090, 3000]


def test_links_carry_the_token_and_json_does_not() -> None:
    plan = a_plan(**ALL, publish={"jupyter": 9999})
    ports = {port.name: port for port in plan.published}

    assert link(ports["jupyter"], token=TOKEN) == f"http://127.0.0.1:9999/lab?token={TOKEN}"
    assert login(ports["grafana"], token=TOKEN) == f"user admin, password {TOKEN}"
    assert tunnel(ports["jupyter"], user="ada", host="box") == "ssh -N -L 9999:127.0.0.1:9999 ada@box"
    assert published_services(plan, host="box")[0] == PublishedService(
        name="jupyter",
        port=9999,
        url="http://127.0.0.1:9999/lab",
        tunnel="ssh -N -L 9999:127.0.0.1:9999 ada@box",
    )


def test_a_framework_with_metrics_of_its_own_is_asked_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    board = PlannedPort(name="dashboard", port=8265, discovery="/api/prometheus/sd")
    monkeypatch.setattr(exec, "ports", lambda _: (board,))
    monkeypatch.setattr(exec, "DRIVEN", True)
    plan = a_plan(recipe="exec", image="torch:1", **{"with": "prometheus"})
    files = render_service_files(plan, loader=jinja2.FileSystemLoader("/"))

    _, own = yaml.safe_load(files["prometheus/prometheus.yml"])["scrape_configs"]
    assert own["http_sd_configs"][0]["url"] == "http://master:8265/api/prometheus/sd"
    token = {"type": "Bearer", "credentials_file": "/composesim/secrets/token"}
    assert own["http_sd_configs"][0]["authorization"] == token
    server = next(each for each in plan.services if each.name == "prometheus-server")
    assert "/composesim/secrets" in {mount.target for mount in server.mounts}
    assert [port.name for port in plan.published] == ["dashboard", "prometheus"]


def test_what_services_read_is_what_they_can_read() -> None:
    """YAML and JSON; Prometheus queries the exporter, Grafana and every panel query Prometheus."""
    plan = a_plan(**ALL)
    files = render_service_files(plan, loader=jinja2.FileSystemLoader("/"))

    scraped = yaml.safe_load(files["prometheus/prometheus.yml"])["scrape_configs"]
    exporter = next(each for each in plan.services if each.name == "prometheus").command[-1]
    assert scraped == [
        {
            "job_name": "composesim",
            "static_configs": [{"targets": [f"127.0.0.1:{exporter}"], "labels": {"run": plan.run}}],
        }
    ]
    source = yaml.safe_load(files["grafana/datasources/composesim.yaml"])["datasources"][0]
    assert source["url"] == "http://127.0.0.1:9091"
    provider = yaml.safe_load(files["grafana/dashboards/composesim.yaml"])["providers"][0]
    assert provider["options"]["path"] == "/composesim/services/grafana/dashboards"
    board = json.loads(files["grafana/dashboards/composesim.json"])
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    assert all(target["expr"] for panel in panels for target in panel["targets"])
