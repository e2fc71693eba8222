"""The options `--world` and `--ranks` of `composesim plan`."""

from __future__ import annotations

from typing import Any

import click

from compose_sim.app.request import Request, program_of
from compose_sim.app.session import Session
from compose_sim.cli.console import echo, print_json, say
from compose_sim.core.json_values import to_json
from compose_sim.errors import SpecError
from compose_sim.plugins.world.core.lines import lines
from compose_sim.plugins.world.core.world import ranks_per_node, ranks_to_run
from compose_sim.plugins.world.engine.run import run_ranks


class WorldView:
    """Show a world of any size, of which some ranks run here without data."""

    options = (
        click.Option(
            ["--world"],
            type=int,
            metavar="N",
            help="Show what N ranks would do; runs two steps of some of them without data.",
        ),
        click.Option(
            ["--ranks"],
            metavar="0,511,…",
            help="The ranks that --world runs.  [default: the first, a middle and the last]",
        ),
    )

    def is_wanted(self, world: int | None, ranks: str | None) -> bool:
        """Return whether this view replaces that of a plan."""
        if ranks and world is None:
            raise SpecError("--ranks names ranks of a --world", hint=f"composesim plan --world 1024 --ranks {ranks} …")
        return world is not None

    def show(self, request: Request, *, as_json: bool, world: int, ranks: str | None) -> int:
        """Run the ranks, print what they did, and return the exit code."""
        asked = "nproc_per_node" in request.spec.model_fields_set
        per_node = ranks_per_node(world, request.spec.nproc_per_node if asked else None)
        chosen = ranks_to_run(world, ranks or "")
        session = Session(request)
        if not as_json:
            say(f"Running {len(chosen)} of {world:,} ranks, without data …")
        memory = session.host.memory_bytes
        found = run_ranks(
            session.plan, program_of(request), world=world, per_node=per_node, ranks=chosen, most_bytes=memory // 4
        )
        if as_json:
            print_json({"schema_version": 1, "works": found.works, **_plain(to_json(found))})
        else:
            for line in lines(found):
                echo(line)
        return 0 if found.works else 1


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """Return the answer without the groups that no collective uses: there may be thousands."""
    for rank in found["ranks"]:
        used = {each["group"] for each in (*rank["per_step"], *rank["before"])} | {
            name for mesh in rank["meshes"] for name in mesh["groups"]
        }
        rank["groups"] = {name: ranks for name, ranks in rank["groups"].items() if name in used}
    return found


VIEW = WorldView()
