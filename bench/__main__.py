"""Run `python -m bench` from the root of the repository."""

import sys

from bench.run import main

sys.exit(main())
