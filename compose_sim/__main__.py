"""How does the command start? `composesim` and `python -m compose_sim` are the same."""

import sys


def main() -> None:
    """Import the command line and run it; Ctrl-C ends even the import quietly."""
    try:
        from compose_sim.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
