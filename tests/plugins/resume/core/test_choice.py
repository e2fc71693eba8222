"""Test when a run is interrupted."""

from __future__ import annotations

from dataclasses import replace

from compose_sim.plugins.resume.core.checkpoints import Checkpoint, choose_interruption


def checkpoint(step: int, *files: str) -> Checkpoint:
    return Checkpoint(step=step, files=files or ("last.pt",), ranks=(0,))


def test_it_is_a_few_steps_after_a_complete_checkpoint() -> None:
    chosen = choose_interruption((checkpoint(0), checkpoint(10), checkpoint(20)), 30)

    assert (chosen.step, chosen.checkpoint) == (13, checkpoint(10))


def test_it_is_between_two_checkpoints_that_are_close() -> None:
    chosen = choose_interruption((checkpoint(2), checkpoint(4), checkpoint(6)), 7)

    assert (chosen.step, chosen.checkpoint) == (3, checkpoint(2))


def test_it_is_after_one_whose_name_comes_before_that_of_an_older_one() -> None:
    saved = tuple(checkpoint(step, f"step_{step}.pt") for step in range(3, 16, 3))

    assert choose_interruption(saved, 17).checkpoint == checkpoint(12, "step_12.pt")


def test_it_is_after_one_amid_an_accumulation() -> None:
    amid = replace(checkpoint(6), is_amid=True)

    assert choose_interruption((checkpoint(2), checkpoint(4), amid, checkpoint(8)), 9).checkpoint == amid


def test_the_user_chooses_the_step() -> None:
    chosen = choose_interruption((checkpoint(2), checkpoint(4), checkpoint(6)), 9, at_step=5)

    assert (chosen.step, chosen.checkpoint) == (5, checkpoint(4))


def test_a_checkpoint_of_the_last_step_leaves_nothing_to_compare() -> None:
    chosen = choose_interruption((checkpoint(9),), 9)

    assert chosen.checkpoint is None
    assert "step 9" in chosen.why_not
