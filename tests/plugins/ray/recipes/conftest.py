"""Provide an empty project for runs with the real Ray."""

from tests.recipes.conftest import project

__all__ = ["project"]
