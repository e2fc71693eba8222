"""Start the command line: `composesim` and `python -m compose_sim` are the same."""

import gc
import sys


def main() -> None:
    """Import the command line and run it; Ctrl-C prints no traceback, even during the import."""
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


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current folder: modules in a project must not replace those that we import
    main()
