"""Judge one broken and one hard script of each check, which takes minutes. `make zoo` runs all."""

from __future__ import annotations

import re

import pytest

from compose_sim.core.request.names import CHECK_IDS
from tests.builders import ROOT
from tests.zoo.runner import ZOO, Example, examples, fits, read_example, run_example

# Where the first in alphabetical order takes a minute or more.
_QUICKER = {
    "gradient-clipping/broken_still_scaled",
    "gradient-mean/broken_policy_gradients_added",
    "matches-single/hard_two_optimizers",
    "params-after-wrap/broken_head_replaced",
    "params-in-sync/broken_not_wrapped",
    "params-in-sync/hard_gossip",
    "unused-params/hard_experts_balanced",
    "wrapper-bypassed/broken_loss_of_discriminator",
    "wrapper-bypassed/hard_generator_and_discriminator",
}
# What the others use little of, and torch changes most: FSDP2 and DTensor, replayed with one rank.
_SHARDED = ("matches-single/hard_sharded_layers", "matches-single/hard_tensor_parallel")


def _sample() -> list[Example]:
    """Return one script of each check and kind, which `make test` can afford, and a few more."""
    sample = []
    for name in CHECK_IDS:
        for kind in ("broken", "hard"):
            scripts = [example for example in examples([name]) if example.kind == kind]
            sample += sorted(scripts, key=lambda example: example.name not in _QUICKER)[:1]
    return sample + [example for example in examples() if example.name in _SHARDED]


_SAMPLE = _sample()  # no second run unless the script's check needs it


@pytest.mark.train
@pytest.mark.parametrize("example", _SAMPLE, ids=lambda example: example.name)
def test_a_script_is_judged_rightly(example: Example) -> None:
    outcome = run_example(example, quick=True)

    assert outcome.error == ""
    assert outcome.missed == frozenset()
    assert outcome.false_alarms == frozenset(), "\n".join(outcome.details)


@pytest.mark.parametrize("name", CHECK_IDS)
def test_each_check_has_wrong_right_and_hard_scripts(name: str) -> None:
    kinds = [example.kind for example in examples([name])]

    assert kinds.count("broken") >= 2
    assert {"right", "hard"} <= set(kinds)


def test_the_gallery_shows_scripts_that_are_judged_as_it_says() -> None:
    rows = re.findall(r"`tests/zoo/([\w-]+)/(\w+)\.py` \| \[([\w-]+)\]", (ROOT / "docs" / "gallery.md").read_text())

    assert len(rows) == 6
    for folder, name, found in rows:
        assert found == folder
        assert found in read_example(ZOO / folder / f"{name}.py").expects


def test_every_folder_is_a_checks_and_every_script_a_proper_one() -> None:
    folders = [path for path in ZOO.iterdir() if path.is_dir() and path.name not in ("__pycache__", "site-packages")]

    assert {path.name for path in folders} == set(CHECK_IDS)
    for path in (path for folder in folders for path in folder.glob("*.py")):
        read_example(path)


@pytest.mark.parametrize(
    ("options", "fit"),
    [((), True), (("--nproc-per-node", "2"), True), (("--nodes", "4", "--nproc-per-node", "1"), False)],
)
def test_a_script_about_local_ranks_needs_several_on_a_node(options: tuple[str, ...], fit: bool) -> None:
    script = read_example(ZOO / "rank-confusion" / "broken_shards_by_hand.py")

    assert script.ranks_per_node == 2
    assert fits(script, options) is fit


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("wrong_name.py", "", "is none of broken_….py, right_….py, hard_….py"),
        ("broken_silent.py", "", "a broken script, and no other, has a line '# expects: ID'"),
        ("right_loud.py", "# expects: hang\n", "a broken script, and no other, has a line '# expects: ID'"),
        ("broken_typo.py", "# expects: hangs\n", "there is no check named hangs"),
    ],
)
def test_a_script_that_says_nothing_useful_is_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, text: str, problem: str
) -> None:
    path = tmp_path_factory.mktemp("zoo") / name
    path.write_text(text)

    with pytest.raises(ValueError, match=problem):
        read_example(path)
