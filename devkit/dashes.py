"""A verb whose arguments may be followed by `-- CMD`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

_WORDS = "devkit.words"


class BehindDashes(TyperCommand):
    """Keeps what stands behind `--` apart: click would mix a command's words with the verb's own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


def behind_dashes(context: typer.Context) -> tuple[str, ...]:
    words: tuple[str, ...] = context.meta[_WORDS]
    return words
