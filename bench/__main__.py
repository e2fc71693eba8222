"""`python -m bench`, from the repository's root."""

import sys

from bench.run import main

sys.exit(main())
