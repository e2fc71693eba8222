"""What a script lacks is answered with what to type: where nodes run, and what they see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.report.missing import below, folder_hint, missing_file, mount_hint, on_this_machine, package_hint
from tests.builders import a_plan

LOCAL = replace(a_plan(), engine="local", image="host", python="/venv/bin/python")
HOST = replace(LOCAL, engine="docker", working_directory="/home/me/project")
IMAGE = replace(HOST, image="my/torch:1")


def test_a_package_is_installed_where_nodes_run() -> None:
    message = "ModuleNotFoundError: No module named 'einops'"

    for plan in (LOCAL, HOST):
        assert package_hint(message, plan).endswith("Try: /venv/bin/python -m pip install einops")
    assert package_hint(message, IMAGE).endswith("Try: composesim image build --requirements FILE")


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("ModuleNotFoundError: No module named 'cv2'", "opencv-python-headless"),
        ("ModuleNotFoundError: No module named 'torch.nowhere'", ""),
        ("ImportError: cannot import name 'x' from 'y'", ""),
    ],
)
def test_the_distribution_is_named(message: str, name: str) -> None:
    assert package_hint(message, LOCAL).rpartition(" ")[2] == name


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '../data/words.txt'", "/home/me/data/words.txt"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a'", "/data/a"),
        ("RuntimeError: Parent directory 'out' does not exist", "/home/me/project/out"),
        ("FileNotFoundError: no quotes", ""),
        ("ValueError: No such file '../data'", ""),
    ],
)
def test_a_file_that_containers_do_not_find_is_named_as_they_see_it(message: str, path: str) -> None:
    named = missing_file(message)
    assert (named and below(HOST.working_directory, named)) == path


def test_a_script_that_looks_beside_itself_is_run_there() -> None:
    hint = folder_hint("data/words.txt", "examples/train.py", HOST)
    assert "relative to /home/me/project" in hint
    assert hint.endswith("Try: cd examples && composesim up train.py …")


def test_the_home_folder_of_nodes_is_another_one() -> None:
    assert on_this_machine("/home/node/datasets/words.txt", "/home/me") == "/home/me/datasets/words.txt"
    assert on_this_machine("/data/words.txt", "/home/me") == "/data/words.txt"
    hint = mount_hint("/home/node/words.txt", "/home/me/words.txt", HOST)
    assert "--mount /home/me/words.txt:/home/node/words.txt:ro" in hint
    assert HOST.working_directory in hint
