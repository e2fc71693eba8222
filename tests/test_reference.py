"""The generated files are current."""

from __future__ import annotations

import pytest

from compose_sim.core.request.flags import options_of
from compose_sim.core.request.names import RECIPE_NAMES, SERVICE_NAMES
from compose_sim.core.request.spec import CheckSpec, ClusterSpec, NodeSpec
from scripts.write_reference import FILES
from tests.builders import ROOT


@pytest.mark.parametrize("name", FILES)
def test_generated_files_are_current(name: str, update_golden: bool) -> None:
    """`make docs` or `pytest --update-golden` updates them."""
    if update_golden:
        (ROOT / name).write_text(FILES[name]())

    assert (ROOT / name).read_text() == FILES[name](), "run: make docs"


@pytest.mark.parametrize("spec", [ClusterSpec, CheckSpec, NodeSpec])
def test_every_field_has_a_sentence_and_every_flag_a_metavar(spec: type[ClusterSpec]) -> None:
    for option in options_of(spec):
        assert option.description.endswith("."), option.key
        assert option.metavar or option.kind == "switch" or not option.flags, option.key


def test_descriptions_name_every_recipe_and_service() -> None:
    described = {option.key: option.description for option in options_of(ClusterSpec)}

    assert [name for name in RECIPE_NAMES if name not in described["recipe"]] == []
    assert [name for name in SERVICE_NAMES if name not in described["with"]] == []
