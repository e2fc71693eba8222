"""Split a command line at SCRIPT: arguments after it belong to the script, as with torchrun."""

from __future__ import annotations

import click

DEFAULT_SCRIPT = "composesim.default_script"  # whether a leading -- passes all arguments to the default script
_MODULE_FLAGS = ("-m", "--module")


class ClusterCommand(click.Command):
    """A command whose options end at SCRIPT or after `-m MODULE`."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """End the options after the name of a module; Click would continue."""
        count = self.count_options(args)
        ctx.meta.setdefault(DEFAULT_SCRIPT, args[count : count + 1] == ["--"])
        names_module = count >= 2 and args[count - 2] in _MODULE_FLAGS
        return super().parse_args(ctx, [*args[:count], "--", *args[count:]] if names_module else args)

    def count_options(self, args: list[str]) -> int:
        """Return how many of the first arguments are options and their values, including the name of a module."""
        flags = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        count = 0
        while count < len(args) and args[count].startswith("-") and args[count] != "--":
            word = args[count]
            count += 1 if word in flags or word in ("-h", "--help") or "=" in word else 2
            if word in _MODULE_FLAGS:
                break
        return min(count, len(args))


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
