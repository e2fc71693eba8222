"""Stand in for nvidia-cuda-mps-control on a machine without a GPU: a daemon with -f, else its client. The pipes are files."""

import os
import pathlib
import sys
import time

folder = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
serving, told_to_quit = folder / "serving", folder / "told-to-quit"
if sys.argv[1:] == ["-f"]:
    if os.environ.get("STUB_FAILS"):
        sys.exit(3)
    serving.touch()
    while not told_to_quit.exists():
        time.sleep(0.01)
    serving.unlink()
    print("told to quit", flush=True)
elif not serving.exists():
    sys.exit(1)
elif sys.stdin.readline().startswith("quit"):
    told_to_quit.touch()
else:
    print("100.0")
