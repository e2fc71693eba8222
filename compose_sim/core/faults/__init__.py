"""
Define faults, in three forms: a `Fault` is the command as the user gave it, an `Effect` is what it does to the run and how
that is reverted, and a `FaultRecord` is what happened, in state, events and report.
"""
