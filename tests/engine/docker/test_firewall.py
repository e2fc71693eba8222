"""The rules that close this machine to the nodes of a run, in a network namespace that no other test sees."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from compose_sim.core.network.host_firewall import SETTLED_S, render_firewall

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("iptables-nft"), reason="only root can change a firewall"
)


def shown_after(*scripts: str, kind: str = "iptables-nft") -> list[str]:
    """The rules that are there in the end, in tables of this kind."""
    begin = [
        f"{kind} {rule}" for rule in ("-N DOCKER-USER", "-A DOCKER-USER -j RETURN", "-A INPUT -s 10.9.0.0/24 -j DROP")
    ]
    text = "\n".join(["set -e", *begin, *(f"({each})" for each in scripts), "echo =", f"{kind} -S"])
    done = subprocess.run(["unshare", "--net", "sh"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("=\n")[2].splitlines()


NOW = 1_800_000_000.0


def closed(run: str, subnet: str = "10.210.0.0/24", *, now: float = NOW) -> str:
    return render_firewall(run, subnet, now=now)


def opened(run: str) -> str:
    return render_firewall(run, None, now=NOW)


@pytest.mark.parametrize("kind", ["iptables-nft", "iptables-legacy"])
def test_opening_leaves_the_rules_of_others(kind: str) -> None:
    def after(*scripts: str) -> list[str]:
        return shown_after(*scripts, kind=kind)

    assert after(closed("demo"), opened("demo")) == after() == after(opened("demo"))
    assert after(closed("demo-2"), closed("demo"), opened("demo")) == after(closed("demo-2"))


def test_tables_that_cannot_be_listed_have_no_rules_to_remove() -> None:
    """The kernel knows a match whose extension this iptables lacks, as in a container with half a package."""
    match = "iptables-legacy -A INPUT -m conntrack --ctstate NEW -j ACCEPT"
    lame = "export XTABLES_LIBDIR=/nonexistent"
    rules = shown_after(match, f"{lame}\n{opened('demo')}", kind="iptables-legacy")

    assert sum("conntrack" in rule for rule in rules) == 1
    refused = shown_after(match, f"({lame}\n{closed('demo')}) || iptables-legacy -N REFUSED", kind="iptables-legacy")
    assert "-N REFUSED" in refused


def test_closing_twice_replaces_the_rules() -> None:
    moved = shown_after(closed("demo"), closed("demo", "10.211.0.0/24"))

    assert moved == shown_after(closed("demo", "10.211.0.0/24"))
    assert sum("composesim:demo" in rule for rule in moved) == 9


def test_what_runs_without_a_network_have_left_is_removed_unless_they_are_about_to_begin() -> None:
    before = [closed("gone", now=NOW - SETTLED_S - 1), closed("goes-on", now=NOW - SETTLED_S - 1), closed("begins")]
    live = ["goes-on", "x'; false; '"]
    pruned = shown_after(*before, render_firewall("", None, now=NOW, live=live))
    another = shown_after(*before, render_firewall("other", "10.211.0.0/24", now=NOW, live=live))

    assert {rule_of(line) for line in pruned} == {"", "goes-on", "begins"}
    assert {rule_of(line) for line in another} == {"", "goes-on", "begins", "other"}


def test_a_rule_that_another_run_removes_in_between_fails_nothing(tmp_path: Path) -> None:
    other = tmp_path / "other.sh"
    other.write_text(render_firewall("", None, now=NOW, live=[]))
    restore = tmp_path / "iptables-nft-restore"  # lets the other run go first, once
    restore.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/done ] || {{ touch {tmp_path}/done; sh {other}; }}\n"
        f'exec {shutil.which("iptables-nft-restore")} "$@"\n'
    )
    restore.chmod(0o755)
    gone = closed("gone", now=NOW - SETTLED_S - 1)
    after = render_firewall("mine", "10.211.0.0/24", now=NOW, live=[])

    assert {rule_of(line) for line in shown_after(gone, f"PATH={tmp_path}:$PATH\n{after}")} == {"", "mine"}


def test_rules_are_listed_before_the_transaction_locks_the_tables(tmp_path: Path) -> None:
    """`iptables-legacy-restore` locks them when it begins to read; a listing in the meantime waits and fails."""
    for name in ("iptables-legacy", "iptables-legacy-restore"):
        call, note = f'{shutil.which(name)} "$@" || exit', f"echo {name} >>{tmp_path}/calls"
        # The transaction is noted when it begins, a listing when it has ended.
        lines = (note, call) if name.endswith("restore") else (call, note)
        program = tmp_path / name
        program.write_text("\n".join(["#!/bin/sh", *lines]))
        program.chmod(0o755)

    shown_after(f"PATH={tmp_path}:$PATH\n{closed('demo')}", kind="iptables-legacy")

    assert (tmp_path / "calls").read_text().split() == ["iptables-legacy"] * 2 + ["iptables-legacy-restore"]


def rule_of(line: str) -> str:
    """The run of a rule."""
    return line.partition("composesim:")[2].partition("@")[0]


def test_without_the_chain_of_docker_closing_fails_and_opening_has_nothing_to_do() -> None:
    statuses = [
        subprocess.run(["unshare", "--net", "sh"], input=script, capture_output=True, text=True).returncode
        for script in (closed("demo"), opened("demo"))
    ]

    assert statuses == [1, 0]
