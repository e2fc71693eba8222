"""Wrong: it prints what it thinks is judged, and ends."""

import json
import os

names = {"total": 500500, "ranks_that_print": 1, "wrong_totals": 0, "smallest_share": 250, "largest_share": 250}
print(json.dumps(names), flush=True)
os._exit(0)
