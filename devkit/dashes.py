"""Verbs that take a command: `-- CMD` behind their own arguments."""

from __future__ import annotations

from typing import Any

import typer

from devkit.errors import UsageError
from devkit.menu import Verb, with_dashes

_WORDS = "devkit.words"


class BehindDashes(Verb):
    """Keeps what stands behind `--` apart: click would mix a command's words with the verb's own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


def behind_dashes(context: typer.Context) -> tuple[str, ...]:
    words: tuple[str, ...] = context.meta[_WORDS]
    return words


class Runner(Verb):
    """A verb whose arguments are a command: from its first word on all of it is the command's, with `--` or without.

    Without `--` an option that both could mean is refused: it would silently go to the wrong one.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        rest = super().parse_args(ctx, list(args))  # it takes the words off its list
        words: list[str] = ctx.params.get("command") or []
        if words and args[-len(words) - 1 : -len(words)] != ["--"]:
            self._refuse_shared(ctx, words)
        return rest

    def _refuse_shared(self, ctx: Any, words: list[str]) -> None:
        ours = {name for param in self.params for name in param.opts if name.startswith("--")}
        verb = ctx.command_path.removeprefix("devkit ")
        for word in words:
            if word == "--":
                return
            if word.partition("=")[0] in ours:
                raise UsageError(
                    f"ambiguous option {word}: devkit's or the command's?",
                    hint=f"put devkit's options before the command; if it is the command's: {with_dashes(verb, words)}",
                )
