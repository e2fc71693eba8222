"""Print STREAM_LINES numbered lines, spread evenly over STREAM_S seconds."""

import os
import time

rank, count, seconds = os.environ["RANK"], int(os.environ["STREAM_LINES"]), float(os.environ["STREAM_S"])
begun = time.monotonic()
for number in range(count):
    wait = begun + seconds * number / count - time.monotonic()
    if wait > 0:
        time.sleep(wait)
    print(f"rank {rank} line {number}", flush=True)
