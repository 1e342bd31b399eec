"""`devkit attach`: a debugger in the terminal, for one stop or for many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from devkit.debug.evaluate import stops_of
from devkit.debug.inworker.records import StopRecord
from devkit.debug.naming import Who, label
from devkit.debug.protocols import Hub
from devkit.debug.targets import ALL, ask_what_became_of, counted, find_id, rank_matcher, select
from devkit.debug.terminal_commands import AGAIN, Command, help_text, is_unfinished, parse
from devkit.debug.terminal_input import Lines, open_lines
from devkit.debug.terminal_look import LOOK, complete, show_position
from devkit.debug.terminal_move import MOVE
from devkit.debug.terminal_screen import Screen
from devkit.debug.terminal_session import Session
from devkit.errors import DeadlineError, DevkitError, UsageError

REPEATED = frozenset({"next", "step", "return", "up", "down", "list"})  # what an empty line does again
DO = {**LOOK, **MOVE}


def main(
    stop: str | None = None,
    *,
    everything: bool = False,
    ranks: str | None = None,
    job: str | None = None,
    address: str | None = None,
) -> int:
    """Attach to one stop, to those of `ranks`, or to all; those of one job, if it is named."""
    from devkit.debug.client import connect

    if sum((stop is not None, everything, ranks is not None)) > 1:
        raise UsageError("an ID, --ranks and --all cannot be combined", hint="use one of them")
    with connect(address) as hub:
        return run(hub, stop, everything=everything, ranks=ranks, job=job)


def run(
    hub: Hub, stop: str | None = None, *, everything: bool = False, ranks: str | None = None, job: str | None = None
) -> int:
    """One session, from the first look to the last word. 1 when a process died while it was stopped."""
    stops = stops_of(hub, job, named=stop is not None)
    ask_what_became_of(hub, stops, (stop,) if stop else ())
    records = chosen(stops, stop, everything=everything, ranks=ranks)
    session = Session(hub, Screen(), follows=follower(everything, ranks, job))
    lines = open_lines(lambda text, column: complete(session, text, column), lambda: session.peers.post("end of input"))
    session.ended = lines.ended
    try:
        session.open(records)
        show_position(session, session.chosen())
        converse(session, lines)
        say_goodbye(session)
    finally:
        lines.close()
        session.close()
    return 1 if any(one.lost for one in session.members) else 0


def follower(everything: bool, ranks: str | None, job: str | None = None) -> Callable[[StopRecord], bool]:
    """Whether a stop that comes later joins the session."""
    if ranks is None:
        return lambda stop: everything and job in (None, stop.job_id)
    wanted = rank_matcher(ranks)
    return lambda stop: job in (None, stop.job_id) and stop.rank is not None and wanted(stop.rank)


def chosen(
    stops: Sequence[StopRecord], stop: str | None, *, everything: bool = False, ranks: str | None = None
) -> list[StopRecord]:
    """The stops that are meant; without a word, the only one. Raises UsageError when that leaves a choice."""
    if ranks is not None:
        rank_matcher(ranks)
        return select(stops, ranks)
    if everything:
        return select(stops, ALL)
    if stop is not None:
        wanted = find_id(stop, [each.id for each in stops], "stop")
        return [each for each in stops if each.id == wanted]
    if len(stops) > 1:
        named = [f"{each.id} ({label(Who(each.role, each.rank, each.id))})" for each in stops[:4]]
        more = ", ..." if len(stops) > 4 else ""
        hint = f"devkit attach ID, one of {', '.join(named)}{more}; or --all for a session with all of them"
        raise UsageError(f"{counted(stops)} are paused: which one?", hint=hint)
    return list(stops)


def converse(session: Session, lines: Lines) -> None:
    """Commands until `q`, the end of the input, or until nobody is left."""
    last = Command(AGAIN)
    while not session.is_over():
        try:
            line = read_command(session, lines)
            if line is None:
                return
            command = parse(line)
            if command.word == AGAIN:
                command = last
            last = command if command.word in REPEATED else Command(AGAIN)
            if command.word == "quit":
                return
            if command.word != AGAIN:
                do(session, command)
        except (UsageError, DeadlineError) as error:
            session.screen.wrong(error.message, error.hint)
        except DevkitError as error:
            session.screen.wrong(error.message, error.hint)
        except KeyboardInterrupt:
            session.screen.notice("interrupted: type q to quit")


def read_command(session: Session, lines: Lines) -> str | None:
    """A line, or the lines of a statement that goes on."""
    session.peers.take_waiting()
    if session.newcomers:
        show_position(session, session.admit())
    text = lines.read(session.prompt())
    while text is not None and _goes_on(text):
        more = lines.read("... ")
        if not more:
            return text
        text = f"{text}\n{more}"
    return text


def _goes_on(text: str) -> bool:
    try:
        command = parse(text)
    except UsageError:
        return False
    return command.word == "run" and is_unfinished(command.argument)


def do(session: Session, command: Command) -> None:
    """One command. Raises UsageError for what can't be done now."""
    if command.word == "help":
        session.screen.say(help_text(command.argument))
    elif command.word in ("ranks", "all"):
        session.narrow("all" if command.word == "all" else command.argument)
        show_position(session, [one for one in session.chosen() if one.state == "stopped"])
    else:
        DO[command.word](session, command.argument)


def say_goodbye(session: Session) -> None:
    """What becomes of those that the session leaves, and why others are gone."""
    session.wait_for_reasons()
    stopped = [one for one in session.members if one.state == "stopped"]
    running = [one for one in session.members if one.state == "running"]
    if stopped:
        which = stopped[0].record.id if len(stopped) == 1 else "--all"
        stay = "stays" if len(stopped) == 1 else "stay"
        hint = f"devkit attach {which} comes back, devkit continue {which} resumes"
        session.screen.notice(f"{session.name(stopped)} {stay} stopped: {hint}")
    if running:
        session.screen.notice(f"{session.name(running)} left running")
    if not stopped and not running:
        session.screen.notice("no rank is left to debug")
