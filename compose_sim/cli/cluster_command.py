"""Where do our options end and the script's words begin? Click commands that stop at SCRIPT, as torchrun does."""

from __future__ import annotations

import click

DEFAULT_SCRIPT = "composesim.default_script"  # whether a leading -- says that all words are the default script's
_MODULE_FLAGS = ("-m", "--module")


class ClusterCommand(click.Command):
    """A command whose options stop at SCRIPT, or behind `-m MODULE`: what follows is the program's own, as with torchrun."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """End the options behind a module's name, where click would go on."""
        count = self.count_options(args)
        ctx.meta.setdefault(DEFAULT_SCRIPT, args[count : count + 1] == ["--"])
        names_module = count >= 2 and args[count - 2] in _MODULE_FLAGS
        return super().parse_args(ctx, [*args[:count], "--", *args[count:]] if names_module else args)

    def count_options(self, args: list[str]) -> int:
        """How many of the first words are options and their values, up to and with a module's name."""
        flags = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        count = 0
        while count < len(args) and args[count].startswith("-") and args[count] != "--":
            word = args[count]
            count += 1 if word in flags or word in ("-h", "--help") or "=" in word else 2
            if word in _MODULE_FLAGS:
                break
        return min(count, len(args))


class OwnWordFirst(ClusterCommand):
    """One whose first word is its own (`render DIR`, `play SCENARIO`); options may follow it, up to SCRIPT."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move that word behind the options that follow it; click would take a -- behind it for one of the script's words."""
        before = self.count_options(args)
        own, behind = args[before : before + 1], args[before + 1 :]
        after = self.count_options(behind)
        options, words = behind[:after], behind[after:]
        ctx.meta[DEFAULT_SCRIPT] = words[:1] == ["--"]
        words = words[1:] if ctx.meta[DEFAULT_SCRIPT] else words
        return super().parse_args(ctx, [*args[:before], *options, *own, *words])
