"""Run a session in a separate process, for the pytest plugin: `python -m compose_sim.app.session_process FIELDS`.

FIELDS is a JSON object of fields of ClusterSpec. The report, or the error, is printed as JSON.
"""

from __future__ import annotations

import json
import sys

from compose_sim.app.listener import QuietListener
from compose_sim.app.request import read_request
from compose_sim.app.session import Session
from compose_sim.errors import ComposesimError


def main() -> None:
    """Run the session, and exit with the exit code of the report."""
    try:
        report = Session(read_request(json.loads(sys.argv[1]))).run(QuietListener())
    except ComposesimError as error:
        print_and_exit({"error": error.to_dict()}, error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    print_and_exit(report.to_dict(), report.exit_code)


def print_and_exit(value: object, exit_code: int) -> None:
    """Print a value as JSON, and exit."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
