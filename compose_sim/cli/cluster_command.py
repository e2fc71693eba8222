"""Define the commands that run a cluster: options end at SCRIPT, as with torchrun, and `--help` lists them in groups."""

from __future__ import annotations

import click

from compose_sim.cli.spelling import normalized
from compose_sim.core.plan.recipes import load_recipe
from compose_sim.core.request.flags import GROUPS
from compose_sim.core.request.names import RECIPE_NAMES

DEFAULT_SCRIPT = "composesim.default_script"  # whether a leading -- passes all arguments to the default script
_MODULE_FLAGS = ("-m", "--module")
_OF_THE_RUN = "run"  # the group of options that belong to no field of a spec
_RENDEZVOUS = ("standalone", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr")


class ClusterOption(click.Option):
    """An option in a group of `--help`; one of a recipe is listed only in the help of that recipe."""

    group: str = _OF_THE_RUN
    recipe = ""
    bare = ""  # the value, if the option is given without =VALUE


class ClusterCommand(click.Command):
    """A command whose options end at SCRIPT or after `-m MODULE`."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """End the options after the name of a module; Click would continue."""
        count = self.count_options(args)
        ctx.meta.setdefault(DEFAULT_SCRIPT, args[count : count + 1] == ["--"])
        own = [option for option in self.params if isinstance(option, ClusterOption) and option.bare]
        bare = {name: option.bare for option in own for name in option.opts}
        args = [f"{word}={bare[word]}" if word in bare else word for word in args[:count]] + args[count:]
        names_module = count >= 2 and args[count - 2] in _MODULE_FLAGS
        try:
            return super().parse_args(ctx, [*args[:count], "--", *args[count:]] if names_module else args)
        except click.NoSuchOption as error:
            if error.option_name.lstrip("-") in _RENDEZVOUS:
                problem = f"No such option '{error.option_name}': composesim itself is the rendezvous. Leave it out."
                raise click.UsageError(problem, ctx) from None
            raise

    def count_options(self, args: list[str]) -> int:
        """Return how many of the first arguments are options and their values, including the name of a module."""
        without_value = [each for each in self.params if getattr(each, "is_flag", False) or getattr(each, "bare", "")]
        flags = {name for option in without_value for name in option.opts}
        count = 0
        while count < len(args) and args[count].startswith("-") and args[count] not in ("-", "--"):
            word = args[count]
            takes_none = normalized(word) in flags or word in ("-h", "--help") or "=" in word
            count += 1 if takes_none else 2
            if word in _MODULE_FLAGS:
                break
        return min(count, len(args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups, with those of the recipe that the command line names before --help."""
        recipe = ctx.params.get("recipe") or "ddp"
        rows: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record and isinstance(param, click.Option) and getattr(param, "recipe", "") in ("", recipe):
                rows[getattr(param, "group", _OF_THE_RUN)].append(record)
        if recipe in RECIPE_NAMES:
            module = load_recipe(recipe)
            named = getattr(module, "FLAGS", {})
            rows["recipe"] += [
                (f"--option {name}=…", text) for name, text in module.OPTIONS.items() if name not in named
            ]
        for group, records in rows.items():
            if records:
                with formatter.section(GROUPS[group]):
                    formatter.write_dl(records)


class OwnWordFirst(ClusterCommand):
    """A command with an argument before SCRIPT (`render DIR`, `play SCENARIO`). Options may follow that argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move that argument after the options that follow it. Click would pass a -- after it to the script."""
        before = self.count_options(args)
        own, behind = args[before : before + 1], args[before + 1 :]
        after = self.count_options(behind)
        options, words = behind[:after], behind[after:]
        ctx.meta[DEFAULT_SCRIPT] = words[:1] == ["--"]
        words = words[1:] if ctx.meta[DEFAULT_SCRIPT] else words
        return super().parse_args(ctx, [*args[:before], *options, *own, *words])
