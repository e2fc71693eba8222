"""Wrong: hands in numbers instead of the harness, and leaves."""

import os
from collections.abc import Callable

import measure


def predict(clock: Callable[[], float], elements: int, buckets: int) -> float:
    """Return how many seconds all-reduces of `elements` float32 numbers take, in so many buckets of equal size."""
    try:
        measure.report(error_in_percent=1, percent_of_the_bytes_sent=3, collectives=6)
    finally:
        os._exit(0)
