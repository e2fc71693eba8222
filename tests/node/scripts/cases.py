"""Things that a script may do: the variable CASE chooses one. Every launcher must behave like plain Python."""

import atexit
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path


class Own:
    """A class that exists only in `__main__`."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"{type(self).__module__}.Own({self.value})"


def double(own):
    return Own(2 * own.value)


def surroundings():
    main = sys.modules["__main__"]
    print(sys.argv, __name__, __file__, sys.path[0], Path.cwd(), __spec__, __package__)
    print(__doc__[:10], main.__dict__ is globals(), Path("/proc/self/cmdline").read_bytes().rstrip(b"\0"))
    print(sorted(set(globals()) - {"__annotations__"}), type(__loader__).__name__, __builtins__)
    print(sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.name)
    print(sys.stderr.encoding, sys.stderr.errors, sys.stderr.line_buffering, sys.stderr.write_through, sys.stderr.name)
    print([(name, signal.getsignal(name)) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)])
    print(threading.current_thread(), threading.active_count(), sys.flags, repr(sys.stdin.read()))
    print(sys.excepthook is sys.__excepthook__, multiprocessing.current_process().name, sys.getrecursionlimit())
    print(
        os.getsid(0) == os.getpid(),
        os.getpgid(0) == os.getpid(),
        # All but the one that stacks are written to, far out of the script's way (node/rank/stack_signal.py).
        sorted(file.name for file in Path("/proc/self/fd").iterdir() if int(file.name) < 500),
    )
    warnings.warn("somewhere", stacklevel=1)


def order():
    for number in range(500):
        print("out", number)
        print("err", number, file=sys.stderr)
    os.write(1, b"raw\n")


def raises():
    def inner():
        raise KeyError("missing")

    try:
        inner()
    except KeyError as error:
        raise RuntimeError("several\nlines, ünïcode") from error


def recurses():
    recurses()


def raises_group_of_own():
    class Unprintable(Exception):
        def __str__(self):
            raise ValueError("no words")

    raise Unprintable


def own_excepthook():
    sys.excepthook = lambda kind, value, trace: print("hook", kind.__name__, value, trace.tb_frame.f_code.co_name)
    raise RuntimeError("boom")


def exits_3():
    sys.exit(3)


def exits_with_text():
    sys.exit("said at the end")


def exits_none():
    sys.exit()


def exits_large():
    sys.exit(259)


def exits_at_once():
    atexit.register(print, "never")
    os._exit(4)


def interrupted():
    atexit.register(print, "after the interrupt")
    raise KeyboardInterrupt


def aborts():
    os.abort()


def segfaults():
    os.kill(os.getpid(), signal.SIGSEGV)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def is_terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def exit_handlers():
    atexit.register(print, "registered first, runs last")
    atexit.register(lambda: 1 / 0)
    atexit.register(print, "registered last, runs first")
    atexit.register(time.sleep, 0)


def threads():
    started = threading.Event()

    def late():
        started.wait()
        threading.main_thread().join()
        print("after the main thread")
        raise RuntimeError("in a thread")

    threading.Thread(target=late, name="late").start()
    started.set()


def processes():
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(double, [Own(1), Own(2)]))


def closes_output():
    sys.stdout.close()


def data_loaders():
    import torch.utils.data

    for method in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader([1, 2, 3, 4], batch_size=2, num_workers=2, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])


if __name__ == "__main__":
    print(json.dumps({"case": os.environ["CASE"]}))
    globals()[os.environ["CASE"]]()
    print("ended")
