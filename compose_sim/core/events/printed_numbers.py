"""Find the numbers in a line of a training loop: `step 20: loss=0.31`, `{'loss': 0.31}`, `epoch 1 loss 0.31`, the end of tqdm's bar."""

from __future__ import annotations

import math
import re

_LONGEST_LINE = 1000  # characters; the rest of a longer line is not read
_MOST = 32  # numbers of one line
_NUMBER = r"[-+]?(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?"
_END = r"(?=$|[\s,;|)\]}%'\"])"
_NAME = r"[A-Za-z][A-Za-z0-9_/@-]{0,39}"
# Words that say what a number is without a sign between them, as in `loss 0.31`.
_KNOWN = (
    r"(?:(?:train|val|valid|test|eval|avg|mean|running)(?:ing|idation)?[ _/-]?)?"
    r"(?:loss|acc(?:uracy)?(?:@\d)?|ppl|perplexity|lr|learning[ _]rate|f1|bleu|rouge|auc|reward|return|grad[ _]norm|top-?[15]|"
    r"throughput)"
)
_PAIR = re.compile(rf"(?<![\w./:-])['\"]?({_NAME})['\"]?\s{{0,3}}(?:=\s{{0,3}}|:\s{{1,3}})['\"]?({_NUMBER}){_END}")
_KNOWN_PAIR = re.compile(rf"(?<![\w./:-])({_KNOWN})\s{{1,3}}({_NUMBER}){_END}", re.IGNORECASE)
_STEP = re.compile(
    r"(?<![\w./-])(?:global[ _])?(?:step|iter(?:ation)?|batch)s?['\"]?\s{0,3}[=:#]?\s{0,3}(\d{1,15})\b", re.IGNORECASE
)
_EPOCH = re.compile(r"(?<![\w./-])(?:epoch|ep)\b", re.IGNORECASE)
_BAR = re.compile(r"(\d{1,15})/(?:\d{1,15}|\?) \[[^\]]{0,40}?, {0,3}[^,\]]{0,20}(?:it/s|s/it)(?:, ([^\]]{0,400}))?\]")
_IS_KNOWN = re.compile(_KNOWN, re.IGNORECASE)
_WORDS = (
    *("loss", "acc", "ppl", "perp", "lr", "rate", "f1", "bleu", "rouge", "auc", "reward", "return", "norm", "top"),
    "throughput",
)
_NO_METRICS = {
    *("epoch", "epochs", "step", "steps", "global_step", "iter", "iteration", "batch", "batch_size"),
    *("rank", "ranks", "local_rank", "global_rank", "world_size", "node", "nodes", "nproc", "pid", "port"),
    *("seed", "num_workers", "line", "device", "version", "size", "length"),
}


def printed_numbers(line: str) -> tuple[int | None, dict[str, float]] | None:
    """
    Return the step that a line names, if any, and its metrics by name; None for a line that is not about training.

    That is a line with a step, an epoch, a known metric or a progress bar, or one of nothing but pairs with a fraction among them.
    """
    text = line[:_LONGEST_LINE]
    lower = text.lower()
    if (
        "=" not in text and ": " not in text and not any(word in lower for word in _WORDS)
    ):  # most lines: regexes cost more
        return None
    bar = _BAR.search(text)
    step = bar or _STEP.search(text)
    pairs = _PAIR.findall(bar[2] or "" if bar else text)
    found = {name: float(number) for name, number in pairs[:_MOST] if name.lower() not in _NO_METRICS}
    for name, number in _KNOWN_PAIR.findall(text)[:_MOST] if not bar else ():
        found.setdefault(name.replace(" ", "_"), float(number))
    found = {name: value for name, value in found.items() if math.isfinite(value)}
    if not found or not (step or _EPOCH.search(text) or any(map(_IS_KNOWN.match, found)) or _is_all_pairs(text, found)):
        return None
    return int(step[1]) if step else None, found


def _is_all_pairs(text: str, found: dict[str, float]) -> bool:
    return not _PAIR.sub("", text).strip(" \t,;|{}()[]%'\"") and not all(value.is_integer() for value in found.values())
