"""Whole sentences in the tables of `--help`: Typer cuts each command's at 45 characters, or at its first full stop."""

from __future__ import annotations

import inspect

import typer


def whole_sentences(app: typer.Typer) -> None:
    """Gives each command of the app, and of those below it, its own help as its line in the table."""
    for command in app.registered_commands:
        command.short_help = _first_paragraph(inspect.getdoc(command.callback) if command.callback else None)
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is not None:
            inner.info.short_help = _first_paragraph(inner.info.help)
            whole_sentences(inner)


def _first_paragraph(text: str | None) -> str | None:
    return " ".join(text.split("\n\n")[0].split()) if text else None
