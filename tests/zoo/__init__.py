"""Which distributed scripts are wrong, and which only look so? One folder a check; runner.py runs them, `make zoo` adds them up.

    tests/zoo/<id>/broken_<what>.py   the check must speak up
    tests/zoo/<id>/right_<what>.py    the same, corrected: no check may speak up
    tests/zoo/<id>/hard_<what>.py     looks wrong and is right: no check may speak up

Comments behind a script's docstring:

    # expects: set-epoch, sampler-tail    of a broken script: the ids that must be failed or warned
    # also: params-in-sync                ids that may be failed or warned as well, as a consequence
    # options: --nodes 1 --steps 10       options of `composesim check`
"""
