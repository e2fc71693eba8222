"""Says when it runs: composesim starts it once Ray has all nodes."""

import json
import time

print(json.dumps({"step": 1, "ready": time.time()}), flush=True)
