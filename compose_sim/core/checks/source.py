"""Read the source of a script: lines that are often wrong, imported modules, and folders added to `sys.path`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import PurePosixPath

from compose_sim.core.report.report import Hint, Place

_COLLECTIVES = re.compile(
    r"all_reduce|all_gather(_into_tensor|_object)?|all_to_all(_single)?|barrier|broadcast(_object_list)?|gather(_object)?"
    r"|reduce|reduce_scatter(_tensor)?|gather_for_metrics|pad_across_processes|wait_for_everyone"
)
NORM_OF_SHARDS = "scales gradients by the norm of the rank's own shards, and reduces nothing"
_FSDP = re.compile(r"\b(fully_shard|FullyShardedDataParallel)\b")
_GPU = re.compile(r"cuda|accelerator|nccl|\.to\(\s*(?:self\.)?dev", re.IGNORECASE)
_RANDOM = re.compile(r"seed|^Generator$|default_rng|RandomState|^Random$|Philox|PCG64|spawn", re.IGNORECASE)
_SAME_ORDER = "no set_epoch is called, so each epoch has the same order"
JUDGED_BY: Mapping[str, str] = {_SAME_ORDER: "set-epoch"}  # a hint of the text alone, and the check that sees the run
_NORMS, _SCALING = {"norm", "vector_norm", "get_total_norm"}, {"mul_", "clamp", "clamp_", "min", "div_"}
_MODULES = {"dist", "distributed", "c10d", "accelerator", "fabric"}  # and objects with methods that are collectives
_FILLS = ("all_reduce", "all_gather_into_tensor", "all_to_all_single", "reduce_scatter_tensor")  # their first argument
_MAX_STATEMENTS = 30  # that are read behind a call
_WAITS = ("wait", "wait_stream", "wait_all", "waitall", "synchronize", "barrier", "wait_for_everyone")
_READING_TEXT = "clone item tolist mean sum norm float double cpu numpy add mul div to"
_READING = frozenset(_READING_TEXT.split())
_CHANGE_NOTHING = ("requires_grad_", "share_memory_")
_COMPUTING = ("torch", "F", "functional", "nn")  # modules whose functions read what they are given
_NAMED = (ast.Name, ast.Attribute, ast.Subscript)
_BARRIERS = ("barrier", "wait_for_everyone")
_MAX_NODES = 100  # a condition with more nodes is not quoted: Python cannot print a deep syntax tree
_OF_ONE_RANK = ("rank", "is_main", "is_master", "is_chief", "is_global_zero", "process_zero")
_SET_EPOCH_THEMSELVES = ("lightning", "pytorch_lightning", "accelerate", "transformers", "ignite")


def find_hints(sources: Mapping[str, str]) -> list[Hint]:
    """Return the lines of these files that are often wrong; a file that is no Python is left out."""
    trees = {file: tree for file, text in sources.items() if (tree := parsed(text))}
    found = [
        (file, line, text)
        for file, tree in trees.items()
        for line, text in (*_shuffles(tree), *_on_one_rank(tree), *_early_cuda(tree), *_loads(tree), *_set_orders(tree))
    ]
    found += [(file, line, text) for file, tree in trees.items() for line, text in _norms_of_shards(tree)]
    found += _same_order(trees, sources)
    in_order = sorted(set(found), key=lambda each: (list(sources).index(each[0]), each[1]))
    return [Hint(place=Place(file=file, line=line), text=text) for file, line, text in in_order]


def parsed(text: str) -> ast.Module | None:
    """Return the syntax tree; None if the text is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def imported_names(text: str) -> list[str]:
    """Return the modules that a file imports, as far as its text shows."""
    tree = parsed(text)
    found: list[str] = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found += [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
    return list(dict.fromkeys(filter(None, found)))


def uses_hashes(sources: Mapping[str, str]) -> bool:
    """Return whether a file makes a set or calls `hash`: strings hash differently in each process, and so sets have another order."""
    for tree in filter(None, map(parsed, sources.values())):
        members = {id(each) for node in ast.walk(tree) if isinstance(node, ast.Compare) for each in node.comparators}
        if any(name in ("set", "frozenset", "hash") and isinstance(call.func, ast.Name) for name, call in _calls(tree)):
            return True
        if any(isinstance(node, (ast.Set, ast.SetComp)) and id(node) not in members for node in ast.walk(tree)):
            return True
    return False


def has_own_randomness(sources: Mapping[str, str]) -> bool:
    """Return whether ranks may draw other random numbers, as far as a text shows: seeds are no constants, or there is none."""
    for text in sources.values():
        tree = parsed(text)
        seeds = [call for name, call in _calls(tree) if _RANDOM.search(name)] if tree else []
        given = [each for call in seeds for each in (*call.args, *(keyword.value for keyword in call.keywords))]
        if any(not _is_constant(each) for each in given) or (not given and "rand" in text):
            return True
        if any(not (call.args or call.keywords) and _name(call.func) != "Generator" for call in seeds):
            return True
    return False


def _is_constant(node: ast.expr) -> bool:
    """Return whether a number is written there, or a name in capitals or `seed` stands for one."""
    name = _name(node)
    return isinstance(node, ast.Constant) or name == "seed" or (name.isupper() and "RANK" not in name)


def empties_file(text: str, line: int) -> bool:
    """Return whether a line only opens a file, and writes nothing into it."""
    tree = parsed(text)
    return any(
        isinstance(node, ast.With)
        and node.lineno == line
        and all(isinstance(each, ast.Pass) for each in node.body)
        and all(
            isinstance(each.context_expr, ast.Call) and _name(each.context_expr.func) == "open" for each in node.items
        )
        for node in (ast.walk(tree) if tree else ())
    )


def only_fsdp_moves(sources: Mapping[str, str]) -> bool:
    """Return whether these files name no GPU, and FSDP is used, which moves a model to the GPUs of its machine by itself."""
    text = "\n".join(sources.values())
    return bool(_FSDP.search(text)) and not _GPU.search(text)


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call with the last part of the name that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield _name(node.func), node


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _given(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@dataclass(frozen=True, slots=True)
class EarlyRead:
    """A tensor that a call is still filling, and the first line that uses it before the script waits."""

    file: str
    line: int  # of the call
    call: str
    tensor: str
    used_in: int  # line


def early_reads(sources: Mapping[str, str]) -> Iterator[EarlyRead]:
    """Yield the tensors that the script uses between an `irecv`, or a reduction with `async_op=True`, and the wait for it."""
    for file, text in sources.items():
        tree = parsed(text) if "async_op" in text or "irecv" in text else None
        nodes = [*ast.walk(tree)] if tree else []
        functions = {node.name: _names_in(node) for node in nodes if isinstance(node, ast.FunctionDef)}
        blocks = [getattr(node, name, ()) for node in nodes for name in ("body", "orelse", "finalbody")]
        for block in (each for each in blocks if isinstance(each, list)):
            for at, statement in enumerate(block):
                call = getattr(statement, "value", None)
                if isinstance(call, ast.Call) and _fills_later(call):
                    targets = getattr(statement, "targets", ())
                    handles = {name for target in targets for name in _names_in(target)}
                    waiting = {name for name, used in functions.items() if used & handles}  # as far as names tell
                    later = block[at + 1 :][:_MAX_STATEMENTS]
                    if not all(isinstance(target, ast.Name) for target in targets):  # others may wait
                        later = later[: next((nth for nth, each in enumerate(later) if _may_wait(each)), len(later))]
                    line = _used_before({*_WAITS, *waiting, *handles}, call.args[0], later)
                    if line:
                        yield EarlyRead(file, call.lineno, _name(call.func), ast.unparse(call.args[0]), line)


@dataclass(frozen=True, slots=True)
class CutRows:
    """Rows that ranks gather in one list or tensor, and of which the first are kept, in the order of the ranks."""

    file: str
    line: int  # of the gathering
    text: str  # what cuts
    cut_in: int  # line


def cut_rows(sources: Mapping[str, str]) -> Iterator[CutRows]:
    """Yield what a function gathers, puts together rank by rank, and cuts at the end, as in `torch.cat(parts)[:count]`."""
    for file, text in sources.items():
        tree = parsed(text) if "all_gather" in text else None
        for function in ast.walk(tree) if tree else ():
            if isinstance(function, ast.FunctionDef):
                yield from (CutRows(file, *each) for each in _cut_in(function))


def _cut_in(function: ast.FunctionDef) -> Iterator[tuple[int, str, int]]:
    calls = (call for name, call in _calls(function) if name == "all_gather" and call.args)
    gathered = {call.args[0].id: call.lineno for call in calls if isinstance(call.args[0], ast.Name)}
    nodes = [*ast.walk(function)] if gathered else []
    stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    joined = {  # what is put together under a name of its own
        node.targets[0].id: _put_together(node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Subscript) and _keeps_the_first(node.slice):
            name = node.value.id if isinstance(node.value, ast.Name) else ""
            held = joined.get(name, "") if stored[name] == 1 else _put_together(node.value)
            if held in gathered and stored[held] == 1:
                yield gathered[held], ast.unparse(node), node.lineno


def _put_together(value: ast.expr) -> str:
    """Return the name of the list that is put together by rows; "" if it is something else."""
    if not (isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.Name)):
        return ""
    given = [*value.args[1:2], *(each.value for each in value.keywords)]
    is_by_row = _name(value.func) in ("cat", "concat", "concatenate", "vstack") and all(_is(each, 0) for each in given)
    return value.args[0].id if is_by_row else ""


def _keeps_the_first(part: ast.expr) -> bool:
    if not isinstance(part, ast.Slice):
        return False
    return part.lower is part.step is None and isinstance(part.upper, (ast.Name, ast.Attribute, ast.Call))


def _fills_later(call: ast.Call) -> bool:
    """Return whether a call of torch.distributed returns before it has changed its first argument."""
    name, of = _name(call.func), getattr(call.func, "value", None)
    is_of_torch = of is None or _name(of) in ("dist", "distributed", "c10d")
    is_short = bool(call.args) and isinstance(call.args[0], _NAMED) and len([*ast.walk(call.args[0])]) < _MAX_NODES
    is_async = name == "irecv" or (name in _FILLS and _is(_given(call, "async_op"), True))
    return is_of_torch and is_short and is_async


def _may_wait(statement: ast.stmt) -> bool:
    """Return whether a statement only calls something, and no method that changes a tensor."""
    call = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and not _name(call.func).endswith("_")


def _names_in(tree: ast.AST) -> set[str]:
    return {_name(node) for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))} - {"self"}


def _used_before(ends: Set[str], tensor: ast.expr, statements: list[ast.stmt]) -> int | None:
    """Return the first line that uses a tensor before a statement that names one of `ends`, or gives a name of the tensor away."""
    parts, text = _names_in(tensor), ast.unparse(tensor)
    for each in statements:
        names = _names_in(each)
        if names & ends or isinstance(each, (ast.Return, ast.FunctionDef, ast.ClassDef)):
            return None
        stored = {
            _name(node) for node in ast.walk(each) if isinstance(node, _NAMED) and isinstance(node.ctx, ast.Store)
        }
        if hasattr(each, "body") and stored & parts:
            return None
        for node in ast.walk(each) if parts <= names else ():
            if any(isinstance(used, _NAMED) and ast.unparse(used) == text for used in _operands(node)):
                return int(getattr(node, "lineno", each.lineno))
        if stored & parts:
            return None
    return None


def _operands(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what an operation computes with; what only keeps a tensor, or reads its shape, is none."""
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.AugAssign):
        yield from (node.target, node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        changes = node.func.attr.endswith("_") and node.func.attr not in _CHANGE_NOTHING
        is_reading = node.func.attr in _READING or (changes and not node.func.attr.startswith("_"))
        yield from [node.func.value] if is_reading else []
        computes = _name(node.func.value) in _COMPUTING and not node.func.attr.endswith(("_like", "is_tensor", "numel"))
        yield from node.args if computes else []


def _shuffles(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for name, call in _calls(tree):
        sampler = _given(call, "sampler")
        if name == "DataLoader" and _is(_given(call, "shuffle"), True) and sampler and not _is(sampler, None):
            yield call.lineno, "shuffle=True beside a sampler raises ValueError; DistributedSampler shuffles by itself"


def _same_order(trees: Mapping[str, ast.Module], sources: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    calls = [(file, name, call) for file, tree in trees.items() for name, call in _calls(tree)]
    libraries = {each.partition(".")[0] for text in sources.values() for each in imported_names(text)}
    if any(name == "set_epoch" for _, name, _ in calls) or libraries & set(_SET_EPOCH_THEMSELVES):
        return
    for file, name, call in calls:
        if name == "DistributedSampler" and not _is(_given(call, "shuffle"), False):
            yield file, call.lineno, _SAME_ORDER


def _on_one_rank(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find collectives under `if rank == 0:` whose other branch has no such collective."""
    branches = [node for node in ast.walk(tree) if isinstance(node, ast.If) and _chooses_one_rank(node.test)]
    # `if rank != 0: barrier()` and later `if rank == 0: barrier()` let one rank go first.
    barriers = sum(name in _BARRIERS for node in branches for name, _ in _collectives(node.body))
    for node in branches:
        other = {name for name, _ in _collectives(node.orelse)}
        for name, call in _collectives(node.body):
            if name not in other and not (name in _BARRIERS and barriers > 1):
                condition = ast.unparse(node.test)
                yield call.lineno, f"{name} is called under `if {condition}:`; the other ranks never call it"


def _chooses_one_rank(test: ast.expr) -> bool:
    test = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    nodes = [*ast.walk(test)]
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and len(nodes) < _MAX_NODES:
        return any(map(_chooses_one_rank, test.values))
    names = [_name(node).lower() for node in nodes if isinstance(node, (ast.Name, ast.Attribute))]
    compares = isinstance(test, ast.Compare) and any(isinstance(each, ast.Constant) for each in test.comparators)
    is_flag = isinstance(test, (ast.Name, ast.Attribute, ast.Call))
    ranks = [name for name in names if any(word in name for word in _OF_ONE_RANK)]
    return bool(ranks) and len(nodes) < _MAX_NODES and (compares or (is_flag and not names[0].endswith("rank")))


def _collectives(body: list[ast.stmt]) -> Iterator[tuple[str, ast.Call]]:
    """Yield the collectives over all ranks that these statements call themselves."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name, call in _calls(statement):
            of_module = isinstance(call.func, ast.Attribute) and _name(call.func.value) in _MODULES
            if _COLLECTIVES.fullmatch(name) and of_module and _given(call, "group") is None:
                yield name, call


def _early_cuda(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find `.cuda()` and `.to("cuda")` above `set_device` in one body."""
    for scope in ast.walk(tree):
        if not isinstance(scope, (ast.Module, ast.FunctionDef)):
            continue
        calls = sorted(
            ((name, call) for statement in scope.body if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
             for name, call in _calls(statement)),
            key=lambda each: each[1].lineno,
        )  # fmt: skip
        chosen = next((call.lineno for name, call in calls if name == "set_device"), 0)
        for name, call in calls:
            first = call.args[0] if call.args else None
            moves = (name == "cuda" and not call.args) or (
                name == "to" and isinstance(first, ast.Constant) and first.value == "cuda"
            )
            if moves and isinstance(call.func, ast.Attribute) and call.lineno < chosen:
                yield call.lineno, f"moved to the first GPU of the node: set_device is called only in line {chosen}"


def _loads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    if "cuda" not in ast.dump(tree):
        return  # what was saved without a GPU is on none
    for name, call in _calls(tree):
        is_torchs = isinstance(call.func, ast.Attribute) and _name(call.func.value) == "torch"
        if name == "load" and is_torchs and len(call.args) < 2 and _given(call, "map_location") is None:
            yield call.lineno, "torch.load without map_location puts tensors on the GPU that saved them"


def _set_orders(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find `enumerate(set(names))`: Python gives each process another order of strings."""
    for name, call in _calls(tree):
        first = call.args[0] if call.args and name == "enumerate" else None
        if isinstance(first, (ast.Set, ast.SetComp)) or (isinstance(first, ast.Call) and _name(first.func) == "set"):
            text = "a set of strings has another order in each process; enumerate(sorted(…)) has the same on all ranks"
            yield call.lineno, text


def _norms_of_shards(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Find functions that scale gradients by the norm of a rank's own shards, and reduce nothing."""
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef):
            continue
        calls = dict(reversed([(name, call.lineno) for name, call in _calls(scope)]))
        has_gradients = any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in ast.walk(scope))
        reduces = any(word in name for name in calls for word in ("reduce", "gather", "full_tensor", "redistribute"))
        if "to_local" in calls and has_gradients and calls.keys() & _NORMS and calls.keys() & _SCALING and not reduces:
            yield calls["to_local"], f"{scope.name} {NORM_OF_SHARDS}"


_MAX_PARTS = 20  # a folder's expression may be nested this deeply
_OF_ARGUMENT = ("Path", "PurePath", "str", "fspath", "abspath", "realpath", "normpath", "expanduser")


def added_folders(text: str, file: str) -> list[str]:
    """Return the arguments of `sys.path.insert` and `sys.path.append` in this file, relative ones below the working directory."""
    found: list[str] = []
    for node in ast.walk(parsed(text) or ast.Module([], [])):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if ast.unparse(node.func) in ("sys.path.insert", "sys.path.append"):
            folder = _value(node.args[-1], file, _MAX_PARTS)
            found += [folder] if folder else []
    return list(dict.fromkeys(found))


def _value(node: ast.expr, file: str, depth: int) -> str:
    """Return the path that an expression of constants and `__file__` stands for; nothing for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id == "__file__":
        return file
    if not depth:
        return ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _joined([node.left, node.right], file, depth)
    if isinstance(node, ast.Attribute) and node.attr == "parent":
        return _parent(_value(node.value, file, depth - 1))
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
        number = node.slice.value if isinstance(node.slice, ast.Constant) else None
        path = _value(node.value.value, file, depth - 1)
        for _ in range(number + 1 if isinstance(number, int) and 0 <= number < _MAX_PARTS else 0):
            path = _parent(path)
        return path if isinstance(number, int) else ""
    return _called(node, file, depth) if isinstance(node, ast.Call) else ""


def _called(node: ast.Call, file: str, depth: int) -> str:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("resolve", "absolute", "as_posix") and isinstance(node.func, ast.Attribute):
        return _value(node.func.value, file, depth - 1)
    if name == "join":
        return _joined(node.args, file, depth)
    argument = _value(node.args[0], file, depth - 1) if len(node.args) == 1 else ""
    return _parent(argument) if name == "dirname" else argument if name in _OF_ARGUMENT else ""


def _joined(nodes: list[ast.expr], file: str, depth: int) -> str:
    parts = [_value(each, file, depth - 1) for each in nodes]
    return str(PurePosixPath(*parts)) if parts and all(parts) else ""


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent) if path else ""
