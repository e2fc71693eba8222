"""Does a printed plan keep secrets to itself, and everything else readable?"""

from __future__ import annotations

import pytest

from compose_sim.core.plan.environment import MASK, masked
from tests.builders import a_plan


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MY_PWD", "AUTH", "gh_credentials"]
)
def test_secrets_of_all_nodes_and_of_one_node_are_masked(name: str) -> None:
    values = masked(a_plan(env={name: "s3cret"}, nodes=[{"env": {name: "s3cret"}}]))

    assert values["environment"][name] == MASK
    assert values["nodes"][0]["environment"][name] == MASK
    assert "s3cret" not in str(values)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("AUTHOR", "ada", "ada"),
        ("NCCL_DEBUG", "WARN", "WARN"),
        ("KEYBOARD", "de", "de"),
        ("PWD", "/home/ada", "/home/ada"),
        ("DATABASE_URL", "postgres://ada:s3cret@host/db", f"postgres://ada:{MASK}@host/db"),
        ("PROXY", "http://host:3128/", "http://host:3128/"),
    ],
)
def test_other_values_are_shown_without_passwords_in_urls(name: str, value: str, shown: str) -> None:
    assert masked(a_plan(env={name: value}))["environment"][name] == shown
