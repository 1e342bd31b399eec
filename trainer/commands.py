"""What the trainer's command lines share: how they read their words, and how they end.

Whatever goes wrong on purpose is one `error:` and one `hint:` line on stderr, and the exit code of its kind; so is an
interruption, and output that cannot be written. A reader of stdout that has seen enough, as `head`, is no error.
"""

from __future__ import annotations

import argparse
import bdb
import io
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from trainer.config.show import print_lines
from trainer.errors import ConfigError, Interrupted, TrainerError


class Parser(argparse.ArgumentParser):
    """argparse with this project's error lines."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, hint=self._hint(message))

    def _hint(self, message: str) -> str:
        """Hydra's options for a whole file of values, which commands for verl have, name what is not read here."""
        if "--config-name" in message or "--config-path" in message:
            return "Hydra's files are not read here: give each of their values as KEY=VALUE"
        return f"{self.prog} --help"

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse's own passes over what cannot be written."""
        with output():
            (file or sys.stdout).write(message)


class OutputError(TrainerError):
    """stdout cannot be written."""


@contextmanager
def output() -> Iterator[None]:
    """Around what writes to stdout. Raises OutputError; BrokenPipeError where its reader has gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write the output: {error.strerror or error}", hint="free space, or write it elsewhere"
        ) from error


def outcome(command: Callable[[], int], *, verbose: bool = False, long: bool = False) -> int:
    """The exit code of `command`; its error, if it ends with one, is on stderr. `verbose`: behind its traceback.

    An error that nobody thought of is told in two lines, too. If `long`, nobody would repeat it for its traceback,
    which is there in any case.
    """
    speak_any_text()
    try:
        try:
            code = command()
        except SystemExit as said:  # argparse, after --help
            code = int(said.code or 0)
        with output():
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        report_error(Interrupted("interrupted", hint="nothing had started: run the same command again"))
        return Interrupted.exit_code
    except BrokenPipeError:
        forget_output()
        return 0
    except TrainerError as error:
        if verbose and not isinstance(error, Interrupted):
            traceback.print_exc()
        if isinstance(error, OutputError):
            forget_output()
        report_error(error)
        return error.exit_code
    except bdb.BdbQuit:  # pdb waits for it: whatever ends otherwise it starts anew
        raise
    except Exception as error:  # noqa: BLE001 - the last resort: nobody is to read a traceback to know what to do
        if verbose or long:
            sys.excepthook(type(error), error, error.__traceback__)  # as without us, for a debugger's hook
        report_error(unexpected(error, "above" if verbose or long else "with --verbose"))
        return 1


def unexpected(error: Exception, where: str) -> TrainerError:
    """What none of ours is.

    >>> unexpected(KeyError("a"), "above").message
    "internal error: KeyError: 'a'"
    """
    first = str(error).strip().split("\n")[0][:300]
    said = ": ".join(filter(None, ["internal error", type(error).__name__, first]))
    return TrainerError(said, hint=f"the traceback ({where}) says where; is one of the files that it was given broken?")


def number(name: str, least: float, most: float = math.inf) -> Callable[[str], float]:
    """What argparse takes as the type of an option: a finite number within these limits.

    >>> number("--tolerance", 0.0)("1e-3")
    0.001
    """

    def parsed(text: str) -> float:
        value = float(text)
        if not (math.isfinite(value) and least <= value <= most):
            limits = f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text} is not a number that is {limits}")
        return value

    parsed.__name__ = f"number of {name}"
    return parsed


def report_error(error: TrainerError) -> None:
    """Its two lines on stderr; before them the traceback of a worker's failure that nobody expected."""
    if isinstance(error, Interrupted) and error.is_told:
        return
    trace = getattr(error, "trace", "")
    if trace:
        print(trace, file=sys.stderr)
    print_lines([f"error: {error.message}", f"hint: {error.hint}"], sys.stderr)
    sys.stderr.flush()


def speak_any_text() -> None:
    """A character that a terminal or a pipe has no code for is written as `\\xf6`, and ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def forget_output() -> None:
    """What is still to be written goes nowhere: Python tries once more when it ends, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
