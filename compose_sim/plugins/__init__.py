"""
Optional features, each in a folder `plugins/NAME/`.

A plug-in holds its code by layer, as the package does (`core/`, `engine/`, `app/`, `cli/`, `node/`), its `templates/`, and in
`__init__.py` the table ENTRY_POINTS: group -> name -> "module:attribute". Its tests are in tests/plugins/NAME, its pages in
docs/plugins/NAME. Without these three folders, and after `make docs`, the rest works as before (`make without PLUGIN=NAME`).
Another distribution registers the first five groups in its metadata, as `[project.entry-points."composesim.recipes"]`.

Groups: `composesim.commands` (a Click command; its line in `--help` is in SUMMARIES, and follows the verb in AFTER),
`composesim.recipes`, `composesim.services` (a Service), `composesim.checks` (a ScriptCheck), `composesim.faults` (a FaultKind), and
only in this folder those that `core/request/job_files.py` describes, `composesim.plans` (a view of `plan` with options of its own,
see `cli/commands/cmd_plan.py`), `composesim.roles` and `composesim.observers` (modules of
`node/`, which run inside nodes, see `node/shared/plug_ins.py`), `composesim.timelines` (recipe -> what reads the timeline of its
framework), `composesim.engines` (a class; SUMMARIES says how it runs nodes, and PROGRAMS names the program that this machine needs),
and for such an engine `composesim.clusters` (see `find_cluster` in `core/plan/defaults.py`) and `composesim.options` (a model with
fields of a spec), `composesim.check_modes` (an option of `check` -> a function that checks in another way, see `check` in
`app/check.py`) and `composesim.check_options` (a model with that option; its heading is in SUMMARIES). A feature in NEEDS is left
out without the plug-in that it needs.
`registry.py` finds features for all code outside nodes. This module imports nothing, because nodes import it.
"""
