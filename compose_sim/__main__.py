"""How does `python -m compose_sim` start? As the `composesim` command does."""

from compose_sim.cli import main

if __name__ == "__main__":
    main()
