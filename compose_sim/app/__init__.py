"""Run the sequence that every command and the Python API share: request, inspect, plan, run, report."""
