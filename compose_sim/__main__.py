"""Start the command line: `composesim` and `python -m compose_sim` are the same."""

import gc
import os
import signal
import sys


def main() -> None:
    """Import the command line and run it; Ctrl-C and SIGTERM print no traceback, even during the import."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run may have begun before it handles them
    _open_standard_streams()
    gc.disable()  # it finds nothing to free while modules load, and takes a tenth of the time; cli.Verbs enables it
    try:
        from compose_sim.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:  # click, or what our start imports
        from compose_sim.errors import missing_dependency

        if missing := missing_dependency(error):
            sys.stderr.write(f"Error: {missing.message}\nTry: {missing.hint}\n")
            sys.exit(missing.exit_code)
        raise


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed: else messages would go into whichever file is opened next."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder: modules in a project must not replace those that we import
    main()
