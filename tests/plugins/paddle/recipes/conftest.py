"""Provide an empty project for runs with the real Paddle."""

from tests.recipes.conftest import project

__all__ = ["project"]
