"""What a shell would start, read from the text of a script."""

from __future__ import annotations

import pytest

from compose_sim.plugins.job_files.core.imports.shell import UNKNOWN, Shell

SCRIPT = """#!/bin/bash
GPUS=8  # per node
LAUNCHER="torchrun \\
  --nproc-per-node $GPUS --node-rank \\$SLURM_NODEID"
ARGS=( --epochs 3  # don't (
  --name "a b" )
ARGS+=(-x)
cat <<EOF > config
python wrong.py
EOF
if [ -z "$X" ]; then echo hi >&2; fi
NCCL_DEBUG=INFO srun bash -c "$LAUNCHER train.py" 2>&1 | tee log
export MODE=fast
python train.py "${ARGS[@]}" ${UNSET:-5} 2>err $EMPTY "$EMPTY" $(date +%s) out-$SLURM_JOB_ID
"""


def calls(text: str, **variables: str) -> list[tuple[int, list[str]]]:
    return [(call.line, [*call.words]) for call in Shell(variables=variables).calls(text)]


def test_a_script_is_followed_from_top_to_bottom() -> None:
    shell = Shell(variables={})

    found = {call.words[0]: call for call in shell.calls(SCRIPT)}

    assert [*found] == ["cat", "[", "echo", "srun", "tee", "python"]
    assert found["srun"].words == (
        "srun",
        "bash",
        "-c",
        "torchrun   --nproc-per-node 8 --node-rank $SLURM_NODEID train.py",
    )
    assert found["srun"].variables == {"NCCL_DEBUG": "INFO"}
    assert found["python"].line == 14
    assert found["python"].words[1:7] == ("train.py", "--epochs", "3", "--name", "a b", "-x")
    assert found["python"].words[7:] == (
        "5",
        "",
        f"{UNKNOWN}$(date +%s)".replace(" ", "\ue003"),
        f"out-{UNKNOWN}${{SLURM_JOB_ID}}",
    )
    assert shell.exported == {"MODE": ("fast", 13)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'a'\"b\"c\\ d", ["echo", "abc d"]),
        ("echo a\\\nb", ["echo", "ab"]),
        ("echo $A", ["echo", "1", "2"]),
        ('echo "$A"', ["echo", "1 2"]),
        ("echo a$A-b", ["echo", "a1", "2-b"]),
        ("echo ${A:+set} ${B:-unset}", ["echo", "set", "unset"]),
        ("echo '$A' \\$A", ["echo", "$A", "$A"]),
        ('echo "$@" "${@:2}"', ["echo"]),
        ("exec nohup python x.py &", ["python", "x.py"]),
        ("echo a#b # c", ["echo", "a#b"]),
        ("echo 'open", ["echo", "open"]),
        ('echo ${A:-${B:-x}} ${B:-${C:-$A2}} "${C:-"a b"}"', ["echo", "1", "2", "4", "a b"]),
        ("echo ${C:=3} $C ${A%2} ${L[1]} ${L[9]}", ["echo", "3", "3", f"{UNKNOWN}${{A%2}}"]),
        ("L=(x 'y)' z); echo ${L[1]} ${L[2]} ${#L[@]}", ["echo", "y)", "z", f"{UNKNOWN}${{#L[@]}}"]),
        ("echo $((1 + 2 * 3 - A2)) $(( 1 / 2 ))", ["echo", "3", f"{UNKNOWN}$((_1_/_2_))"]),
    ],
)
def test_words_are_those_of_a_shell(text: str, words: list[str]) -> None:
    assert [
        (line, [word.replace("\ue003", "_") for word in found]) for line, found in calls(text, A="1 2", A2="4")
    ] == [(1, words)]
