"""What `--recipe horovod` starts, and what Horovod's timeline shows about the ranks' time."""

from __future__ import annotations

import json

import jinja2
import pytest

from compose_sim import assets
from compose_sim.core.compose.dockerfile import Image, compilers_of, render_dockerfile
from compose_sim.core.compose.document import render_identity
from compose_sim.core.plan.capacity import with_default_size
from compose_sim.core.plan.model import Plan, Program
from compose_sim.core.plan.planner import make_plan
from compose_sim.core.plan.recipes import DEFAULT_BASE, DEFAULT_BASE_TAG
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.errors import SpecError
from compose_sim.plugins.horovod import core as recipe
from compose_sim.plugins.horovod.core.timeline import parse_timeline
from tests.builders import a_host

SCRIPT = Program(target="train.py", arguments=("--lr", "0.1"), folder="/home/ada/project")
HOST = a_host()


def a_plan(**spec: object) -> Plan:
    """Return the plan of `up --recipe horovod --nodes 4 train.py` with changes to the spec."""
    values = {"recipe": "horovod", "nodes": 4, "image": "lab/horovod:1", **spec}
    cluster = ClusterSpec.model_validate(values)
    return make_plan(cluster, HOST, run="demo", run_folder="/runs/demo", program=SCRIPT, recipe=recipe)


def driver_arguments(plan: Plan) -> list[str]:
    """Return the arguments of the driver on the master's command line."""
    words = list(plan.master.command)
    return words[words.index("--") + 1 :]


def test_the_driver_is_told_the_ranks_and_the_script() -> None:
    plan = a_plan(nproc_per_node=2)

    words = driver_arguments(plan)
    assert words[1] == "horovod-driver"
    assert words[2:6] == ["--slots", "2,2,2,2", "--ranks", "8"]
    assert words[-4:] == ["--", "train.py", "--lr", "0.1"]
    assert plan.launcher == "hosted"
    assert plan.nodes[3].command[-3:] == ("train.py", "--lr", "0.1")


def test_an_elastic_run_starts_with_its_initial_nodes_and_counts_ranks() -> None:
    words = driver_arguments(a_plan(elastic="2:4", nodes=3, nproc_per_node=2))

    assert words[words.index("--elastic") + 1] == "4:8"
    assert words[words.index("--ranks") + 1] == "6"


def test_options_are_lowered_to_bytes_and_milliseconds() -> None:
    given = {"fusion-threshold": "32m", "cycle-time": "2.5ms", "timeline": "on", "mpi": "yes"}

    words = driver_arguments(a_plan(options=given))

    assert words[words.index("--fusion-threshold") + 1] == str(32 << 20)
    assert words[words.index("--cycle-time") + 1] == "2.5"
    assert {"--timeline", "--mpi"} <= set(words)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"options": {"fusion-threshold": "much"}}, "option 'fusion-threshold' is 'much': expected a size"),
        ({"options": {"cycle-time": "fast"}}, "option 'cycle-time' is 'fast': expected a number of milliseconds"),
        ({"options": {"cycle-time": "0"}}, "option 'cycle-time' is '0'"),
        ({"options": {"mpi": "openmpi"}}, "option 'mpi' is 'openmpi': expected on or off"),
        ({"options": {"mpi": "on"}, "elastic": "2:4"}, "--elastic and --mpi exclude each other"),
        ({"launcher": "torchrun"}, "'torchrun' does not apply to recipe 'horovod'"),
        ({"master": "node-0"}, "--master 'node-0' does not apply to recipe 'horovod'"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        a_plan(**spec)


def test_nodes_run_as_an_ordinary_user_whom_they_know_by_name() -> None:
    """The sshd of root would need capabilities, and ssh looks up user names in any image."""
    roots = make_plan(
        ClusterSpec.model_validate({"recipe": "horovod", "image": "lab/horovod:1"}),
        a_host(user_id=0, group_id=0, user_name="root", cannot_map="Invalid argument"),
        run="demo",
        run_folder="/runs/demo",
        program=SCRIPT,
    )

    assert (roots.user, roots.brings_users) == ("65534:65534", True)
    assert "node:x:65534:65534::/home/node:/bin/sh\n" in render_identity(roots)["passwd"]
    assert "nobody:" not in render_identity(roots)["passwd"]
    assert a_plan().user == f"{HOST.user_id}:{HOST.group_id}"


def test_what_compiles_horovod_does_not_stay() -> None:
    image = Image(
        frameworks=recipe.IMAGE.frameworks,
        system_packages=recipe.IMAGE.system_packages,
        compiled=recipe.IMAGE.compiled,
        compiled_on=compilers_of(DEFAULT_BASE),
    )
    loader = jinja2.FileSystemLoader(assets.root())
    first, last = render_dockerfile(image, loader=loader).split("\nFROM ")[1:]

    assert first.startswith(f"{DEFAULT_BASE_TAG.replace('-runtime', '-devel')} AS compiled\n")
    assert "g++" in first
    assert last.startswith(f"{DEFAULT_BASE}\n")
    assert "g++" not in last
    assert "openssh-server" in last
    assert "from=compiled,source=/wheels,target=/tmp/compiled" in last
    assert "COPY" not in last


def test_with_a_wheel_at_hand_nothing_is_compiled() -> None:
    text = render_dockerfile(
        Image(frameworks=recipe.IMAGE.frameworks, wheels=True), loader=jinja2.FileSystemLoader(assets.root())
    )

    assert text.count("FROM ") == 1
    assert "build-horovod.sh" not in text


def test_a_horovod_script_gets_one_rank_per_node() -> None:
    spec = ClusterSpec.model_validate({"script": "train.py", "recipe": "horovod"})

    assert with_default_size(spec).nproc_per_node == 1


def a_timeline(*tensors: tuple[dict[int, int], int, int]) -> str:
    """Return the timeline of some reductions: when each rank was ready, and when it began and ended, in milliseconds."""
    events: list[dict[str, object]] = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "weight"}}]
    for ready, begun, ended in tensors:
        at = [milliseconds * 1000 for milliseconds in (min(ready.values()), begun, ended)]
        events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at[0], "pid": 1})
        events += [
            {"ph": "X", "name": str(rank), "ts": when * 1000, "pid": 1, "dur": 0} for rank, when in ready.items()
        ]
        events.append({"ph": "E", "ts": at[1], "pid": 1})
        events.append({"ph": "B", "name": "ALLREDUCE", "ts": at[1], "pid": 1})
        events.append({"ph": "B", "name": "GLOO_ALLREDUCE", "ts": at[1], "pid": 1})
        events += [{"ph": "E", "ts": at[2], "pid": 1}] * 2
    return "[\n" + "".join(f"{json.dumps(event)},\n" for event in events)


def test_a_rank_that_is_late_makes_the_others_idle() -> None:
    """Of 100 ms twice: rank 0 is ready after 20, rank 1 after 80, and reducing takes 20."""
    text = a_timeline(({0: 0, 1: 60}, 60, 80), ({0: 100, 1: 160}, 160, 180))

    shares = parse_timeline(text, file="timeline.json")

    assert shares is not None
    assert shares.seconds == pytest.approx(0.18)
    assert shares.all_reduce == pytest.approx(40 / 180, abs=1e-4)
    assert shares.idle_by_rank == pytest.approx((120 / 180, 0.0), abs=1e-4)
    assert shares.compute + shares.all_reduce + shares.idle == pytest.approx(1.0, abs=1e-3)
    assert parse_timeline(text.replace('},\n{"ph": "X"', '},{"ph": "X"'), file="timeline.json") == shares, (
        "Horovod writes several events on a line"
    )
    assert shares.summary == "0.18 s: compute 44 %, all-reduce 22 %, idle 33 %; the others wait for rank 1"


def test_a_timeline_that_was_cut_short_is_read_as_far_as_it_goes() -> None:
    """A rank that is killed writes no end."""
    text = a_timeline(({0: 0, 1: 10}, 10, 20), ({0: 30, 1: 40}, 40, 50))

    whole, torn = (parse_timeline(each, file="timeline.json") for each in (text, text[:-90]))

    assert whole is not None
    assert torn is not None
    assert torn.seconds < whole.seconds
    assert parse_timeline("[\n", file="timeline.json") is None
    assert parse_timeline("not a timeline", file="timeline.json") is None
