"""How many lines can a rank print? As many as FLOOD_LINES says, each with its number."""

import os

rank, count = os.environ["RANK"], int(os.environ["FLOOD_LINES"])
for number in range(count):
    print(f"rank {rank} line {number}")
