"""Every error that devkit raises on purpose, in one tree.

    DevkitError                  exit code 1: what was checked is not fine
    ├── FailedError              1: so is what the command ran; knows the record of it. `devkit run`: its exit code
    │   ├── ExitedError          `devkit run`: the command exited, and has said why; ours is one line
    │   └── TerminatedError      143: what it ran was ended by SIGTERM
    ├── UsageError               2: a command that cannot be right
    ├── UnreachableError         3: no cluster to be reached
    ├── NoJobError               3: a cluster, and no job in it that could be looked at
    ├── DeadlineError            4: a wait ended; says what is missing
    └── OutputError              1, or 141 where the reader has gone: what was said cannot be written

Each carries one `hint`: what the user can do about it. The entry point in `cli.py` prints one `error:` line and one
`hint:` line (but for ExitedError) and leaves with `exit_code`; nothing below it catches them. `describe` gives these
three of any exception.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from difflib import get_close_matches

from devkit.records import ErrorRecord

INTERRUPTED = 130
CLOSED_PIPE = 141  # as a shell tells of a program that SIGPIPE ended
_VERBOSE = "add --verbose for the traceback"


class DevkitError(Exception):
    """A failure with a message and a hint, each of one line.

    >>> str(DevkitError("no report folder", hint="choose another folder with --report"))
    'no report folder'
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Ray pickles exceptions; a keyword-only argument needs help to survive it.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[DevkitError], message: str, hint: str) -> DevkitError:
    return kind(message, hint=hint)


class FailedError(DevkitError):
    """What a command ran has failed. Under --json there is one document all the same: the command's, and the error."""

    def __init__(
        self, message: str, *, hint: str, facts: Mapping[str, object] | None = None, exit_code: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.facts = dict(facts or {})
        if exit_code is not None:
            self.exit_code = exit_code


class ExitedError(FailedError):
    """The command that `devkit run` ran has exited by itself, so that its own error stands above: ours only adds to it.

    >>> ExitedError("the command ended with exit code 1", hint="its own output says why", news="").line
    'devkit: the command ended with exit code 1'
    """

    def __init__(
        self, message: str, *, hint: str, news: str, facts: Mapping[str, object] | None = None, exit_code: int = 1
    ) -> None:
        super().__init__(message, hint=hint, facts=facts, exit_code=exit_code)
        self.line = f"devkit: {'; '.join(filter(None, (message, news)))}"


class TerminatedError(FailedError):
    """Somebody else ended what the command ran: a batch system, `timeout`, `kill`."""

    exit_code = 143  # 128 and the signal's number, as a shell tells of it

    def __init__(self, *, facts: Mapping[str, object] | None = None) -> None:
        hint = "a time limit, a batch system or `kill` sent it; run the same command to start again"
        super().__init__("the command was ended by SIGTERM", hint=hint, facts=facts)


class UsageError(DevkitError):
    """A command that cannot be right."""

    exit_code = 2


class UnreachableError(DevkitError):
    """No cluster can be reached: none is there, it does not answer, or it does not let us in."""

    exit_code = 3


class NoJobError(DevkitError):
    """There is a cluster, and no job in it that could be looked at: not the same as one that is not fine."""

    exit_code = 3


class DeadlineError(DevkitError):
    """A wait came to its end; the message says what was still missing."""

    exit_code = 4


class OutputError(DevkitError):
    """Standard output or standard error takes no more."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(
            f"the output cannot be written: {cause.strerror or cause}",
            hint="check where the output goes; df shows full disks",
        )
        self.exit_code = CLOSED_PIPE if cause.errno == errno.EPIPE else 1

    def __reduce__(self) -> tuple[object, ...]:
        return (OutputError, (self.__cause__ or OSError(self.message),))


def describe(error: BaseException) -> ErrorRecord:
    """What to tell the user of any exception.

    Errors are known by their shape, not by their class: naming the trainer's or Typer's would import them here.

    >>> describe(UsageError("no such thing", hint="look again"))
    ErrorRecord(error='no such thing', hint='look again', exit_code=2)
    >>> describe(ValueError("x")).exit_code
    1
    """
    if isinstance(error, KeyboardInterrupt):
        return ErrorRecord("interrupted", "run the same command to start again", INTERRUPTED)
    exit_code = getattr(error, "exit_code", None)
    if not isinstance(exit_code, int):
        return _unexpected(error)
    if hasattr(error, "hint"):
        # A hub of another version, or a rank, may have left either out.
        return ErrorRecord(_one_line(str(error)) or type(error).__name__, _one_line(error.hint) or _VERBOSE, exit_code)
    return _usage(error, exit_code)


def is_puzzling(error: BaseException) -> bool:
    """Whether a traceback would help: not where the command line is wrong, or what it ran has failed.

    >>> is_puzzling(ValueError("x")), is_puzzling(UsageError("x", hint="y")), is_puzzling(KeyboardInterrupt())
    (True, False, False)
    """
    return describe(error).exit_code not in (UsageError.exit_code, INTERRUPTED) and not isinstance(error, FailedError)


def _usage(error: BaseException, exit_code: int) -> ErrorRecord:
    """An error of Typer's own: an unknown option, a value that is not a number."""
    context = getattr(error, "ctx", None)
    see = f"see {context.command_path if context else 'devkit'} --help"
    name = str(getattr(error, "option_name", ""))
    if near := get_close_matches(name, getattr(error, "possibilities", None) or (), n=1):
        return ErrorRecord(f"no such option: {name}", f"did you mean {near[0]}? {see}", exit_code)
    message = _one_line(error.format_message() if hasattr(error, "format_message") else str(error)).removesuffix(".")
    return ErrorRecord(message[:1].lower() + message[1:], see, exit_code)


def _unexpected(error: BaseException) -> ErrorRecord:
    message = _one_line(str(error))
    kind = type(error).__name__
    return ErrorRecord(f"{kind}: {message}" if message else kind, _VERBOSE, 1)


def _one_line(text: str) -> str:
    return " ".join(text.split())
