"""How do all tests run side by side, and what came of them? `python -m tests.lanes`, which `make test` starts."""
