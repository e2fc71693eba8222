"""The table of torch's private names is complete, and a name that is missing or has changed is found."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata as metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose_sim.core.host import torch_versions
from compose_sim.node.rank.torch_hooks import features, private_names
from compose_sim.node.rank.torch_hooks.features import feature_of
from compose_sim.node.rank.torch_hooks.private_names import NAMES, Private, problem_with, version_of
from compose_sim.node.records import KINDS

NODE = Path(features.__file__).parents[2]
TABLE = {part for each in NAMES for part in each.name.replace("()", "").split(".")}


def words(text: str) -> set[str]:
    return set(text.split())


# Private, but not torch's: of Python, glibc and NumPy, and names that observers look for in modules of the script.
OTHERS = words("""
_exit _getframe _current_frames _run_module_as_main _registry _IO_flush_all _wait_for_signals _worker_loop _initializing _remove
_fields _enable _extra_reducers _collections_abc _send _selector _perform _absent_since _finish _members _absent
_absent_at _sitebuiltins _mean _var _std _count _n _dict _saved_ _json _wait_for_attach
""")
# Names that torch documents or that only say something about it: markers for the compiler, operators, and what a replacement defines.
HARMLESS = words("""
_C _VF _dynamo _ops _utils _nn _compile _inductor _nested _torchdynamo_disable _local_scalar_dense _transpose
_index_select _native_layer_norm _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward _untyped_storage _timeout _enabled _cache_enabled
_parameters _buffers
""")
# Replaced or called only if torch has them: without one, nothing calls the replacement.
REPLACED = words("""
_is_compiled _lazy_call _get_device _exchange_device _maybe_exchange_device _check_capability _check_cubins
_cuda_getCurrentRawStream _compile_kernel _all_gather_base _reduce_scatter_base _dispatch_fast_path_python_tail
_ensure_backend_registered _nccl2_device _run_function
""")
# In processes without ranks: the master's store, and the estimate of memory. Each tries the documented way as well.
ELSEWHERE = words("""
_c10d_init _distributed_c10d
""")


def private_names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each private name that a module uses and does not define, with its line."""
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            own.add(node.attr)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.lineno, node.attr
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and is_private(node.value)
            and node.value not in own
        ):
            yield node.lineno, node.value


def is_private(name: str) -> bool:
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None and "composesim" not in name


def test_every_private_name_of_torch_is_in_the_table() -> None:
    known = TABLE | OTHERS | HARMLESS | REPLACED | ELSEWHERE
    found = {
        f"{file.relative_to(NODE)}:{line} {name}"
        for file in NODE.rglob("*.py")
        if file.name != "private_names.py"
        for line, name in private_names_in(ast.parse(file.read_text()))
        if name not in known
    }
    assert not found


def test_every_name_of_the_table_is_used() -> None:
    text = "\n".join(file.read_text() for file in NODE.rglob("*.py") if file.name != "private_names.py")
    unused = [
        each.name
        for each in NAMES
        if each.name.rpartition(".")[2].removeprefix("_accelerator").removesuffix("_json") not in text
    ]
    assert not unused


def test_every_row_says_what_it_is_for_and_what_is_lost_without_it() -> None:
    for name in NAMES:
        assert name.purpose
        assert name.feature in features.WITHOUT
        assert private_names.OLDEST <= version_of(name.since) <= private_names.NEWEST


def test_every_record_of_an_observer_depends_on_it() -> None:
    missing = []
    depending = {feature for kind in KINDS.values() for feature in kind.observers}
    for file in (NODE / "rank" / "observers").glob("*.py"):
        feature = feature_of(f"compose_sim.node.rank.observers.{file.stem}")
        kinds = {kind.__name__ for kind in KINDS.values() if feature in kind.observers}
        noted = {
            name
            for name in re.findall(r"\b([A-Z]\w+)[(,]", file.read_text())
            if name in {k.__name__ for k in KINDS.values()}
        }
        if feature in depending and not noted <= kinds:
            missing.append((feature, noted - kinds))
        elif noted and feature not in depending and feature not in ("iterations", "observers"):
            missing.append((feature, noted))
    assert not missing


@pytest.mark.train
class TestInstalledTorch:
    def test_it_has_every_name_as_expected(self) -> None:
        for each in NAMES:
            importlib.import_module(each.module)
        assert not [why for each in NAMES if (why := problem_with(each))]

    def test_it_has_no_name_that_came_later(self) -> None:
        version = version_of(metadata.version("torch"))
        later = [each for each in NAMES if version_of(each.since) > version]
        assert not [each.name for each in later if not problem_with(each._replace(since="2.9"))]

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            (Private("x", "torch.cuda", "_sleep_no_more", ""), "torch.cuda._sleep_no_more is missing"),
            (Private("x", "torch.cuda", "_sleep.deeper", ""), "torch.cuda._sleep.deeper is missing"),
            (Private("x", "torch.cuda", "_too_new", "", since="99.0"), ""),
            (Private("x", "torch.cuda", "_too_old", "", until="1.0"), ""),
            (Private("x", "torch.nn", "Module()._of_an_object", ""), ""),
            (Private("x", "torch.nn", "Module.forward", "", parameters=("self",)), ""),
        ],
    )
    def test_what_is_missing_is_named(self, name: Private, problem: str) -> None:
        importlib.import_module(name.module)
        assert problem_with(name) == problem

    def test_a_function_with_other_parameters_is_named(self) -> None:
        importlib.import_module("torch.distributed")
        name = Private(
            "x",
            "torch.distributed.distributed_c10d",
            "_new_process_group_helper",
            "",
            parameters=("group_rank", "group_size"),
        )
        assert problem_with(name).startswith(
            "torch.distributed.distributed_c10d._new_process_group_helper takes other arguments"
        )


def test_the_table_covers_the_tested_versions() -> None:
    assert (private_names.OLDEST, private_names.NEWEST) == (torch_versions.OLDEST, torch_versions.NEWEST)


def test_the_version_is_read_from_any_build() -> None:
    assert [version_of(text) for text in ("2.15.0+cu132", "2.16.0a0+git1234", "2.9.1", "odd")] == [
        (2, 15),
        (2, 16),
        (2, 9),
        private_names.NEWEST,
    ]


@pytest.fixture(autouse=True)
def nothing_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_off", {})
    monkeypatch.setattr(features, "_tell", None)
