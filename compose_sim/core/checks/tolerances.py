"""How far numbers may differ, and how often something must be seen, before a check draws a conclusion from it.

Tolerances are relative unless noted otherwise.
"""

from __future__ import annotations

ROUNDING_64_BIT = 1e-6  # ratios of learning rates, which schedulers compute in Python
ROUNDING_32_BIT = 1e-5  # one tensor of 32 bits on two ranks: reductions give them the same bits, or nearly
ROUNDING_32_BIT_SUM = 1e-4  # sums of many numbers of 32 bits, such as atomic additions in another order
ROUNDING_COMBINATION = 1e-3  # combinations of gradients of 32 bits, such as a weighted mean over ranks
ROUNDING_16_BIT = 0.02  # gradients of 16 bits
WHOLE_NUMBER = 1e-3  # absolute: a product of rounded numbers, such as a mean and a count, that should be whole
LOSS_FACTOR = 0.01  # a number by which a script multiplies or divides its loss
SHARD_FACTOR = 0.01  # factors by which ranks scale their shards of one gradient
CLIP_FACTOR = 0.05  # factors by which ranks scale their gradients before the mean
RATE_FACTOR = 0.05  # learning rates that were rounded when they were scaled by the world size
DRIFT = 0.01  # the distance between copies, relative to how far they have moved
PARALLEL = 0.999  # the least cosine of two gradients that differ by a factor
SAME_UPDATE = 0.01  # updates of weights: an adaptive step magnifies rounding
OTHER_UPDATE = 0.1  # updates of weights that no rounding explains
BY_PRECISION = {"float32": 1.0, "tf32": 10.0, "low": 50.0}  # times the user's tolerance

MIN_STEPS = 3  # steps that must show the same; in one or two, it may be chance
MIN_ELEMENTS = 4  # numbers of a tensor: the sketch of a smaller one fits too much
