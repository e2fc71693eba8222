"""The rules that close this machine to the nodes of a run, in a network namespace that no other test sees."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from compose_sim.core.network.host_firewall import render_firewall

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("iptables-nft"), reason="only root can change a firewall"
)
BEGIN = (
    "iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -j RETURN; iptables-nft -A INPUT -s 10.9.0.0/24 -j DROP"
)


def shown_after(*scripts: str) -> list[str]:
    """The rules that are there in the end."""
    text = "\n".join(["set -e", BEGIN, *(f"({each})" for each in scripts), "echo =", "iptables-nft -S"])
    done = subprocess.run(["unshare", "--net", "sh"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("=\n")[2].splitlines()


def closed(run: str, subnet: str = "10.210.0.0/24") -> str:
    return render_firewall(run, subnet)


def opened(run: str) -> str:
    return render_firewall(run, None)


def test_opening_leaves_the_rules_of_others() -> None:
    before = shown_after()

    assert shown_after(closed("demo"), opened("demo")) == before == shown_after(opened("demo"))
    assert shown_after(closed("demo-2"), closed("demo"), opened("demo")) == shown_after(closed("demo-2"))


def test_closing_twice_replaces_the_rules() -> None:
    moved = shown_after(closed("demo"), closed("demo", "10.211.0.0/24"))

    assert moved == shown_after(closed("demo", "10.211.0.0/24"))
    assert sum("composesim:demo" in rule for rule in moved) == 8


def test_without_the_chain_of_docker_closing_fails_and_opening_has_nothing_to_do() -> None:
    statuses = [
        subprocess.run(["unshare", "--net", "sh"], input=script, capture_output=True, text=True).returncode
        for script in (closed("demo"), opened("demo"))
    ]

    assert statuses == [1, 0]
