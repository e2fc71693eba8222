"""Print a line at the start: composesim starts this script once Ray has all nodes."""

import json
import time

print(json.dumps({"step": 1, "ready": time.monotonic()}), flush=True)
