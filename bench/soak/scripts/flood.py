"""Print FLOOD_LINES numbered lines as fast as possible."""

import os

rank, count = os.environ["RANK"], int(os.environ["FLOOD_LINES"])
for number in range(count):
    print(f"rank {rank} line {number}")
