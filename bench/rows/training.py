"""Rows 1 and 2: measure how long a user waits for four training nodes, compared with other tools that start four nodes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.goals import Goal, Row
from bench.leftovers import sweep
from bench.measure import Contestant, NotMeasurableError, Samples, alternate
from bench.rivals import image, kubeflow, torchrun, torchx
from bench.setting import Setting

KEYS = ("1", "2")

DOCKER = "composesim up, docker"
DOCKER_SAME_IMAGE = "composesim up, docker, the rivals' image"
LOCAL = "composesim up, local"

DOCKER_GOALS = [
    Goal(text="≤ 0.5 × four bare torchrun", mine=DOCKER, rival=torchrun.NAME, factor=0.5),
    Goal(text="≤ 0.3 × TorchX local_docker", mine=DOCKER, rival=torchx.NAME, factor=0.3),
    Goal(text="≤ 0.3 × Kubeflow SDK containers", mine=DOCKER, rival=kubeflow.NAME, factor=0.3),
]
LOCAL_GOALS = [Goal(text="≤ 0.28 × four bare torchrun", mine=LOCAL, rival=torchrun.NAME, factor=0.28)]
BARE = (torchrun.NAME, torchrun.NAME_AS_TYPED)

NOTES = [
    "composesim's time contains the removal of its containers and its network; that of the rivals does not.",
    "The rivals' image is made with the same torch, and holds the script. composesim mounts this machine's Python and "
    "the script, or the script alone into the rivals' image.",
]


def measure(setting: Setting, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield both rows from one alternation, since both use the same runs of bare torchrun."""
    field = _Field()
    if "1" in wanted:
        field.enter([DOCKER], lambda: [_composesim(setting, DOCKER, "docker")])
    if "2" in wanted:
        field.enter([LOCAL], lambda: [_composesim(setting, LOCAL, "local")])
    field.enter(BARE, lambda: torchrun.contestants(setting))
    if "1" in wanted:
        _enter_containers(setting, field)
    try:
        samples = alternate(field.contestants, setting.repeats)
    finally:
        image.remove_script()

    threads = (
        f"Every rank has OMP_NUM_THREADS={setting.threads}, which is what composesim plans by itself; "
        f"only “{torchrun.NAME_AS_TYPED}” is as a person types it."
    )
    if "1" in wanted:
        row = Row(key="1", title="`up --nodes 4` on Docker, whole command", goals=DOCKER_GOALS)
        row.notes = [threads, *NOTES]
        yield _fill(row, samples, field.missing, {*samples, *field.missing} - {LOCAL})
    if "2" in wanted:
        row = Row(key="2", title="`up --nodes 4` on the local engine", goals=LOCAL_GOALS, notes=[threads])
        yield _fill(row, samples, field.missing, {LOCAL, *BARE})


class _Field:
    """The contestants that can start, and why the others cannot."""

    def __init__(self) -> None:
        self.contestants: list[Contestant] = []
        self.missing: dict[str, str] = {}

    def enter(self, names: Sequence[str], make: Callable[[], list[Contestant]]) -> None:
        try:
            self.contestants += make()
        except NotMeasurableError as error:
            self.missing.update(dict.fromkeys(names, str(error)))


def _enter_containers(setting: Setting, field: _Field) -> None:
    try:
        image.build(setting)
        image_id = image.add_script(setting)
    except NotMeasurableError as error:
        field.missing.update(dict.fromkeys([DOCKER_SAME_IMAGE, torchx.NAME, kubeflow.NAME], str(error)))
        return
    field.enter([DOCKER_SAME_IMAGE], lambda: [_composesim(setting, DOCKER_SAME_IMAGE, "docker", image.BASE, rounds=2)])
    field.enter([torchx.NAME], lambda: [torchx.contestant(setting, image_id)])
    field.enter([kubeflow.NAME], lambda: [kubeflow.contestant(setting)])


def _composesim(
    setting: Setting, name: str, engine: str, image_name: str = "host", rounds: int | None = None
) -> Contestant:
    setting.composesim()
    options = ["--env", f"OMP_NUM_THREADS={setting.threads}"]
    if engine == "docker":
        setting.require_engine()
        options += ["--image", image_name]
    measure_once = partial(up, setting, "--engine", engine, *options)
    return Contestant(name=name, measure=measure_once, rounds=rounds)


def up(setting: Setting, *options: str, script: str = "train_ddp.py", expect: str = '"accuracy"') -> float:
    """Train once on four nodes, remove what is left, and return the seconds of the whole command."""
    name = setting.new_name()
    try:
        return setting.run(
            [setting.composesim(), "up", "--nodes", "4", "--name", name, *options, script], expect=expect
        ).seconds
    finally:
        sweep(name)
        shutil.rmtree(setting.folder / ".composesim", ignore_errors=True)


def _fill(row: Row, samples: dict[str, Samples], missing: dict[str, str], names: set[str]) -> Row:
    row.samples = {name: value for name, value in samples.items() if name in names}
    row.missing = {name: reason for name, reason in missing.items() if name in names}
    return row
