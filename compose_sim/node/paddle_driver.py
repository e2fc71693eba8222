"""What drives Paddle in Ray's actors? The head of a Ray cluster, as in ray_driver.py, once it is known that there is a Paddle.

Called with the options of ray_driver.py.
"""

from __future__ import annotations

if __name__ == "__main__" and not __package__:
    import as_package  # type: ignore[import-not-found]

    __package__ = as_package.NAME

from . import found, paddle_found, ray_driver
from .driving import fail

if __name__ == "__main__":
    try:
        paddle_found.require_paddle()
    except found.Unfit as problem:
        fail(problem.code, str(problem), f"{paddle_found.HINT} paddle-ray, or composesim up --python /path/to/python …")
    ray_driver.main()
