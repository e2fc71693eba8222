"""A spec file is parsed, every mistake is reported with file, line and key, and flags win."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from compose_sim.core.compose.document import quote
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.request.spec_file import make_spec, parse_spec_text
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import ENGINES, built_in
from tests.builders import ROOT


def parse(text: str, **variables: str) -> dict[str, Any]:
    return parse_spec_text(text, "composesim.yaml", variables)


ENGINE_NAMES = ", ".join(("auto", "docker", "local", *built_in(ENGINES)))
BAD = [
    # text, line, message, what to type instead
    ("nodes: 0", 1, "nodes: '0' is too small: at least 1", ""),
    ("nodes: abc", 1, "nodes: 'abc' is not a number of nodes", ""),
    ("nodes: {a: 1}", 1, "nodes: a mapping is not a whole number or a list of nodes", ""),
    ("nodes: []", 1, "nodes is an empty list: a cluster has at least one node", ""),
    ("nodes:\n- {memory: lots}", 2, "memory: 'lots' is not a size: write it like 512m or 2g", ""),
    ("nodes:\n- {}\n- {cpuss: 1}", 3, "unknown key 'cpuss'; did you mean 'cpus'?", "cpus: 1"),
    ("nodes:\n- {}\n- x", 3, "nodes: 'x' is not a mapping", ""),
    ("nodes:\n-\n- {}", 2, "nodes[0] is empty", "{}"),
    ("# a\n\nnproc-per-node: 2", 3, "unknown key 'nproc-per-node'; did you mean 'nproc_per_node'?", "nproc_per_node: 2"),
    ("mount: [a:/b]", 1, "unknown key 'mount'; did you mean 'mounts'?", "mounts:"),
    ("nproc_per_node: 2.5", 1, "nproc_per_node: '2.5' is not a whole number", ""),
    ("nproc_per_node: 5000", 1, "nproc_per_node: '5000' is too large: at most 1024", ""),
    ("cpus: many", 1, "cpus: 'many' is not a number", ""),
    ("cpus: 0", 1, "cpus: '0' is too small: more than 0", ""),
    ("keep: maybe", 1, "keep: 'maybe' is neither true, false nor failed", ""),
    (f"memory: {9**500}g", 1, f"memory: '{str(9**500)[:80]}' is not a size: write it like 512m or 2g", ""),
    (f"timeout: {9**500}", 1, f"timeout: '{str(9**500)[:80]}' is not a duration: write it like 90s, 10m or 1h30m", ""),
    (f"nodes: {9**500}", 1, f"nodes: '{str(9**500)[:80]}' is not a number of nodes", ""),
    (
        r'image: "a\nCOMPOSESIM_USER=0:0"',
        1,
        r"image: 'a\nCOMPOSESIM_USER=0:0' is not the name of an image: write it like pytorch/pytorch:latest",
        "",
    ),
    ("memory: 1k", 1, "memory: '1k' is too small: at least 6 MiB, and 256 MiB for a node that trains with torch", ""),
    ("scratch: 1m", 1, "scratch: '1m' is too small: at least 6 MiB", ""),
    ("timeout: [1]", 1, "timeout: a list is not a single value", ""),
    ("engine: dcoker", 1, f"engine: 'dcoker' is not one of {ENGINE_NAMES}", "engine: docker"),
    ("image: ''", 1, "image: is empty", ""),
    ("recipe: Ray", 1, "recipe: 'Ray' is not a valid name: use lower-case letters, digits and -", ""),
    ("args: --epochs 3", 1, "args: '--epochs 3' is not a list", "args: [--epochs, 3]"),
    ("env: [A=1]", 1, "env: a list is not a mapping", "env: {NAME: \"value\"}"),
    ("env:\n  A: 1\n  2B: x", 3, "env: '2B' is not a valid name for an environment variable", ""),
    ("env:\n  A:", 2, "env.A has no value", 'A: ""'),
    ("mounts:\n- a:/b\n- x", 3, "mounts: 'x' is not SOURCE:TARGET or SOURCE:TARGET:ro", ""),
    ("script: a\nmodule: b", 1, "script 'a' and module 'b' cannot both run", ""),
    ("nodes: 2\nnodes: 3", 2, "key 'nodes' is given twice, first on line 1", ""),
    ("env:\n  A: ${NOPE}", 2, "env.A: the variable 'NOPE' is not set", "NOPE=… composesim up, or ${NOPE:-default} in the file"),
    ("env:\n  A: $HOME", 2, "env.A: '$HOME' is not ${NAME} or ${NAME:-default}", "${HOME} for a variable, $$HOME for the text"),
    ("args: [a$]", 1, "args[0]: '$' is not ${NAME} or ${NAME:-default}", "$$ for a dollar sign"),
    ("script: a: b", 1, "not valid YAML: mapping values are not allowed here", ""),
    ("env:\n\tA: 1", 2, "not valid YAML: found character '\\t' that cannot start any token", "indent with spaces, not tabs"),
    ("nodes: 2\n---\nnodes: 3", 3, "a spec is one document, and another one starts here", ""),
    ("nodes: 2\nscript: \x01", 2, "not valid YAML: character #x01 is not allowed", ""),
    ('nodes: 2\nelastic: "\\ud800"', 2, "elastic: half of a surrogate pair is not a character", ""),
    ('env: {"\\ud800": x}', 1, "half of a surrogate pair in a key is not a character", ""),
    ("- nodes", 1, "a spec is a mapping such as 'nodes: 2'", ""),
    ("? [a]\n: b", 1, "a key must be a word", ""),
    ("args: &a [*a]", 1, "args[0] is nested too deeply", ""),
    ("[" * 5000, 1, "not a spec: it is nested too deeply", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "problem", "hint"), BAD, ids=[bad[0][:30] for bad in BAD])
def test_a_mistake_is_named_with_file_line_and_key(text: str, line: int, problem: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)

    assert caught.value.message == f"composesim.yaml, line {line}: {problem}"
    assert caught.value.evidence.startswith(f"{line} | ")
    assert caught.value.hint == hint


def test_all_mistakes_are_told_at_once_in_the_order_of_lines() -> None:
    with pytest.raises(SpecError) as caught:
        parse("cpus: many\nnodes: 2\nmemry: 2g\n")

    assert caught.value.message == "composesim.yaml, line 1: cpus: 'many' is not a number"
    assert caught.value.evidence.splitlines() == [
        "1 | cpus: many",
        "and on line 3: unknown key 'memry'; did you mean 'memory'?",
    ]


def test_an_alias_that_expands_without_measure_is_refused() -> None:
    text = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
    )

    with pytest.raises(SpecError, match=r"nested too deeply|expands to more than"):
        parse(text)


def test_words_that_yaml_takes_for_other_things_stay_text() -> None:
    values = parse("env: {A: on, B: no, C: 012, D: 1e3, E: ~, F: null, G: 2001-01-01, H: ''}")

    expected = {"A": "on", "B": "no", "C": "012", "D": "1e3", "E": "~", "F": "null", "G": "2001-01-01", "H": ""}
    assert make_spec(values, {}).env == expected


def test_variables_are_filled_in_and_empty_scalars_are_not_given() -> None:
    text = "nodes: ${N}\nmemory: ${M:-}\nname:\nimage: ${I:-my/image:1}\nargs: ['$${x}', '${N}-$$']"
    values = parse(text, N="3", I="")

    assert values == {"nodes": "3", "image": "my/image:1", "args": ["${x}", "3-$"]}


@pytest.mark.parametrize("text", ["", "\n# only a comment\n", "nodes:\n"])
def test_a_file_that_says_nothing_asks_for_nothing(text: str) -> None:
    assert parse(text) == {}


@given(
    st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text(st.characters(codec="utf-8")), max_size=4)
)
def test_any_text_comes_back_as_it_was_written(env: dict[str, str]) -> None:
    env = {name: value.replace("\0", "") for name, value in env.items()}
    written = ", ".join(f"{name}: {quote(value)}" for name, value in env.items())

    assert parse(f"env: {{{written}}}") == {"env": env}


BAD_FLAGS = [
    ({"nodes": "0"}, "--nodes: '0' is too small: at least 1"),
    ({"nodes": "abc"}, "--nodes: 'abc' is not a number of nodes"),
    ({"nproc_per_node": "x"}, "--nproc-per-node: 'x' is not a whole number"),
    ({"memory": "lots"}, "--memory: 'lots' is not a size: write it like 512m or 2g"),
    ({"engine": "podman"}, f"--engine: 'podman' is not one of {ENGINE_NAMES}"),
    ({"env": {"1": "x"}}, "--env: '1' is not a valid name for an environment variable"),
    ({"mounts": ("x",)}, "--mount: 'x' is not SOURCE:TARGET or SOURCE:TARGET:ro"),
    ({"script": "a.py", "module": "b"}, "script 'a.py' and module 'b' cannot both run"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS, ids=[str(flags) for flags, _ in BAD_FLAGS])
def test_a_wrong_flag_is_named(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({"nodes": "2"}, flags)

    assert caught.value.message == message
    assert caught.value.hint.startswith("composesim up ")


def test_flags_win_over_the_file_and_over_single_nodes() -> None:
    text = """
nodes: [{memory: 1g, nproc_per_node: 2, env: {A: node, B: node}}, {cpus: 1}]
env: {A: file, C: file}
mounts: [data:/data]
"""
    spec = make_spec(parse(text), {"memory": "2g", "env": {"A": "flag"}, "mounts": ("other:/other",)})

    assert spec.memory == 2 << 30
    assert [node.memory for node in spec.node_specs] == [None, None]
    assert spec.node_specs[0].nproc_per_node == 2
    assert spec.env == {"A": "flag", "C": "file"}
    assert spec.node_specs[0].env == {"B": "node"}
    assert spec.mounts == ("data:/data", "other:/other")


def test_a_program_named_by_flag_does_not_get_the_arguments_of_the_file() -> None:
    spec = make_spec(parse("script: train.py\nargs: [--epochs, '3']"), {"module": "pkg.train"})

    assert (spec.script, spec.module, spec.args) == (None, "pkg.train", ())


def test_the_shipped_spec_file_is_valid_for_editors_and_for_us() -> None:
    import jsonschema

    text = (ROOT / "templates" / "init" / "composesim.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), json.loads((ROOT / "templates" / "composesim.schema.json").read_text()))

    assert make_spec(parse(text), {}).script == "train.py"


PROJECT = """
[project]
name = "x"

[tool.composesim]
nodes = 3
keep = true
env = { A = 1, B = "${HOME_OF}" }

[tool.composesim.check]
steps = 20
skip = ["metric-local", "teardown"]
"""


def project(text: str, **variables: str) -> dict[str, Any]:
    return parse_spec_text(text, "pyproject.toml", variables)


def test_a_project_file_says_the_same_in_its_own_table() -> None:
    spec = make_spec(project(PROJECT, HOME_OF="here"), {})

    assert (spec.nodes, spec.keep, spec.env) == (3, True, {"A": "1", "B": "here"})
    assert (spec.check.steps, spec.check.skip) == (20, ("metric-local", "teardown"))
    assert project("[project]\nname = 'x'\n") == {}


BAD_PROJECT = [
    # text, line, message
    ("[tool.composesim]\nnodes = 0", 2, "nodes: '0' is too small: at least 1"),
    ("[a]\nb = 1\n\n[tool.composesim]\n# c\nnods = 2", 6, "unknown key 'nods'; did you mean 'nodes'?"),
    ("[tool.composesim.check]\nstep = 2", 2, "unknown key 'step'; did you mean 'steps'?"),
    ("[tool.composesim.check]\nskip = ['set-epok']", 2, "skip: there is no check 'set-epok'; did you mean 'set-epoch'?"),
    ("[[tool.composesim.nodes]]\n[[tool.composesim.nodes]]\ncpus = 'x'", 3, "cpus: 'x' is not a number"),
    ("[tool.composesim]\nargs = ['${NOPE}']", 2, "args[0]: the variable 'NOPE' is not set"),
    ("[tool]\ncomposesim = 3", 1, "[tool.composesim] is not a table such as nodes = 2"),
    ("[tool.composesim]\nnodes = \n", 2, "not valid TOML: Invalid value (at line 2, column 9)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "problem"), BAD_PROJECT, ids=[bad[0][-20:] for bad in BAD_PROJECT])
def test_a_mistake_in_a_project_file_is_named_with_file_line_and_key(text: str, line: int, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        project(text)

    assert caught.value.message == f"pyproject.toml, line {line}: {problem}"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("args = '--epochs 3'", 'args = ["--epochs", 3]'),
        ("env = 'A=1'", None),
        ("recpie = 'exec'", 'recipe = "exec"'),
        ("nods = 2", "nodes = 2"),
    ],
)
def test_the_hint_for_a_project_file_is_toml(text: str, hint: str | None) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(project(f"[tool.composesim]\n{text}"), {})

    assert hint is None or caught.value.hint.startswith(hint), caught.value.hint
    tomllib.loads(caught.value.hint)


BAD_CHECK = [
    ("check:\n  only: [hang, set_epoch]", 2, "only: there is no check 'set_epoch'; did you mean 'set-epoch'?"),
    ("check:\n  only: hang, oops", 2, "only: there is no check 'oops'; there are hang, "),
    ("check:\n  steps: none", 2, "steps: 'none' is not a whole number"),
    ("check:\n  tolerance: -1", 2, "tolerance: '-1' is too small: more than 0"),
    ("check: all", 1, "check: 'all' is not a mapping"),
]


@pytest.mark.parametrize(("text", "line", "problem"), BAD_CHECK, ids=[bad[0] for bad in BAD_CHECK])
def test_a_mistake_about_checks_is_named(text: str, line: int, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)

    assert caught.value.message.startswith(f"composesim.yaml, line {line}: {problem}")


def test_flags_win_over_what_the_file_says_of_checks() -> None:
    values = parse("check: {steps: 5, skip: 'hang, teardown', tolerance: 1e-2, junit: out.xml}")
    spec = make_spec(values, {"check": {"steps": "9", "only": ("hang,set-epoch", "set-epoch")}})

    wanted = {
        "steps": 9,
        "only": ("hang", "set-epoch"),
        "skip": ("teardown",),
        "strict": False,
        "self_test": False,
        "tolerance": 0.01,
        "junit": "out.xml",
    }
    assert spec.check.model_dump(include={*wanted}) == wanted  # plug-ins have more


def test_a_wrong_flag_of_check_is_named() -> None:
    with pytest.raises(SpecError, match="--only: there is no check 'hangs'; did you mean 'hang'") as caught:
        make_spec({}, {"check": {"only": ("hangs",)}})

    assert caught.value.hint == "composesim check --help"


@pytest.mark.parametrize(
    "text",
    ["link: 1gbit", "link: [1gbit, node-0=10mbit]", "check: {only: 'hang,set-epoch'}", "check: {skip: [hang]}"],
)
def test_what_may_be_one_text_or_a_list_is_both_for_editors_and_for_us(text: str) -> None:
    import jsonschema

    jsonschema.validate(yaml.safe_load(text), ClusterSpec.model_json_schema())
    assert make_spec(parse(text), {}) != ClusterSpec()


@pytest.mark.parametrize("text", ["link: 3", "link: [3]", "check: {only: [hnag]}", "check: {skip: 1}"])
def test_what_is_neither_is_wrong_for_editors_and_for_us(text: str) -> None:
    import jsonschema

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), ClusterSpec.model_json_schema())
    with pytest.raises(SpecError):
        make_spec(parse(text), {})
