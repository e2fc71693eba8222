"""Training scripts that are wrong, or only look wrong, in one folder per check. `make zoo` runs them with runner.py and counts.

    tests/zoo/<id>/broken_<what>.py   the check must fail or warn
    tests/zoo/<id>/right_<what>.py    the same, corrected: no check may fail or warn
    tests/zoo/<id>/hard_<what>.py     looks wrong but is right: no check may fail or warn

Comments after a script's docstring:

    # expects: set-epoch, sampler-tail    of a broken script: the checks that must fail or warn
    # also: params-in-sync                checks that may fail or warn too, as a consequence
    # options: --nodes 1 --steps 10       options of `composesim check`
"""
