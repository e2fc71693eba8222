"""The command that builds the image for a plan."""

from __future__ import annotations

from dataclasses import replace

from compose_sim.core.plan.model import PlannedService
from compose_sim.engine.docker.images import build_command
from tests.builders import a_plan


def test_an_image_that_is_not_there_yet_is_to_be_built_with_all_that_runs_on_it() -> None:
    """Services with a separate image need nothing in the nodes' image."""
    services = (
        PlannedService(name="jupyter", packages=("jupyterlab",)),
        PlannedService(name="tensorboard", packages=("tensorboard",)),
        PlannedService(name="prometheus"),
    )

    assert build_command(a_plan()) == "composesim image build"
    both = replace(a_plan(), recipe="ray", services=services)
    assert build_command(both) == "composesim image build --recipe ray --with jupyter,tensorboard"
