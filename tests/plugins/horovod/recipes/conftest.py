"""Provide an empty project for runs with the real Horovod."""

from tests.recipes.conftest import project

__all__ = ["project"]
