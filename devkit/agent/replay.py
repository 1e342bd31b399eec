"""`devkit agent replay`: a recorded conversation once more in this process, and where it parts from its record."""

from __future__ import annotations

import bdb
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from devkit.agent.show import block, nth, read
from devkit.console import emit, result, talk
from devkit.errors import UsageError
from devkit.logs import redact
from devkit.palette import GOOD
from devkit.records import AgentReplayRecord
from trainer.agent import others, row_options
from trainer.agent.again import Compared, Recorded, again, digest
from trainer.agent.source import BUILT_IN, TOOLS, NoEnvironment, Source, is_file
from trainer.agent.tools import bundle
from trainer.agent.tools.rows import options_of
from trainer.config.agent_schema import MultiTurnConfig
from trainer.user_file import text_of

_WHERE = "give --env FILE.py:CLASS where the file lies elsewhere now"
_OLD = "an earlier version has written it; a run of this one writes it anew to trainer.rollout_data_dir"
_FILES = {"tool_config_path", "function_tool_path"}


@dataclass(frozen=True)
class ReplayOptions:
    file: Path
    row: int
    turn: int | None
    env: str | None
    trust: bool = False  # the code that the file names
    json: bool = False


def main(options: ReplayOptions) -> int:
    """The exit code: 0 all is as recorded, 1 something is not. Raises UsageError for a record that is no use."""
    sample = nth(read(options.file), options.row, "conversation")
    recorded = _recorded(sample, options)
    last = len(recorded.actions) if options.turn is None else options.turn
    if last > len(recorded.actions):
        nth(recorded.actions, last, "turn")
    source, page = _source(sample, options), result()
    done: list[Compared] = []
    head = f"conversation {options.row}: {sample['row']}, sample {sample.get('sample')}, seed {recorded.seed}"
    if not options.json:
        page.print(Text(redact.text(f"{head}; {source.env}"), style="bold"), soft_wrap=True)
    try:
        with redirect_stdout(sys.stderr) if options.json else nullcontext():  # what an environment prints is talk
            for compared in again(source, recorded, last):
                done.append(compared)
                if not options.json:
                    for line in _lines(compared, recorded):
                        page.print(line, soft_wrap=True)
    except NoEnvironment as error:
        raise UsageError(str(error), hint=error.hint) from error
    except bdb.BdbQuit:  # somebody has left the debugger
        return 1
    if options.json:
        record = AgentReplayRecord(source.env, options.row, recorded.seed, len(done), _found(done))
        emit(redact.texts(record.to_json()))
    return 1 if done[-1].difference else 0


def _recorded(sample: Mapping[str, Any], options: ReplayOptions) -> Recorded:
    turns, seed = sample["turns"], sample.get("seed")
    texts = [sample.get("observation"), *(turn.get(name) for turn in turns for name in ("action", "observation"))]
    if not isinstance(seed, int) or not all(isinstance(each, str) for each in texts):
        raise UsageError(
            f"conversation {options.row} of {options.file} has no seed, or not what its environment was given and gave",
            hint=_OLD,
        )
    actions = tuple(turn["action"] for turn in turns)
    observations = (sample["observation"], *(turn["observation"] for turn in turns))
    rewards = tuple(turn["reward"] for turn in turns)
    known = sample.get("environment")
    agent = known.get("agent") if isinstance(known, dict) else None
    given = sample.get("asked")
    given = given if isinstance(given, dict) else {}
    try:
        asked = options_of(given, agent) if isinstance(agent, str) else row_options.options_of(given)
    except (RecursionError, ValueError):
        raise UsageError(f"the row of conversation {options.row} is nested too deeply", hint=_OLD) from None
    return Recorded(seed, actions, observations, rewards, sample["ended"], asked)


def _source(sample: Mapping[str, Any], options: ReplayOptions) -> Source:
    """The environment of the record, as its file is now. Raises UsageError.

    Whoever wrote the samples chose what they name: only the trainer's own environments run on their word alone.
    """
    known = sample.get("environment")
    if (
        not isinstance(known, dict)
        or not isinstance(known.get("kwargs"), dict)
        or not isinstance(known.get("env"), str)
    ):
        raise UsageError(
            f"conversation {options.row} of {options.file} does not say which environment it was played in",
            hint=_OLD,
        )
    env = options.env or known["env"]
    if env in BUILT_IN:
        return Source(env, None, known["kwargs"])
    if (options.env is None or env == TOOLS) and not options.trust:
        raise _untrusted(env, options)
    if others.named(env):
        return Source(env, None, known["kwargs"])
    if env == TOOLS:
        return _tools(known)
    if not is_file(env):
        raise UsageError(f"{env} is neither an environment of the trainer's nor FILE.py:CLASS", hint=_WHERE)
    path = env.rpartition(":")[0]
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a UTF-8 text"
        raise UsageError(f"cannot read {path}: {why}", hint=_WHERE) from error
    if known.get("sha256") not in (None, digest(text)):
        talk().print(f"{path} has changed since the run", soft_wrap=True)
    return Source(env, text, known["kwargs"])


def _untrusted(env: str, options: ReplayOptions) -> UsageError:
    whose, named = f"conversation {options.row} of {options.file}", f"--env {env}, or "
    if env == TOOLS:
        what, named = f"{whose} names tools, which are files of code", ""
    elif others.is_server(env):
        what = f"{whose} names a server: {env.removeprefix(others.SERVER)}"
    elif others.named(env) or is_file(env):
        what = f"{whose} names code: {env}"
    else:
        return UsageError(f"{env} is neither an environment of the trainer's nor FILE.py:CLASS", hint=_WHERE)
    return UsageError(what, hint=f"if you know who wrote that file and want this to run: {named}--trust")


def _tools(known: Mapping[str, Any]) -> Source:
    """Tools, as their files are now. Raises UsageError."""
    files = known.get("files")
    if not isinstance(files, dict) or not files.keys() <= _FILES or not all(_is_path(each) for each in files.values()):
        raise UsageError("the conversation does not say which files its tools are", hint="a run of this version does")
    try:
        text = bundle.read(MultiTurnConfig(**files)).to_text()
    except bundle.Broken as error:
        raise UsageError(str(error), hint=error.hint) from error
    if known.get("sha256") not in (None, digest(text)):
        talk().print("the tools have changed since the run", soft_wrap=True)
    return Source(TOOLS, text, known["kwargs"])


def _is_path(value: object) -> bool:
    return value is None or (isinstance(value, str) and "\0" not in value)


def _lines(compared: Compared, recorded: Recorded) -> Iterator[Text]:
    where = f"turn {compared.turn}" if compared.turn else "reset"
    if compared.difference is None:
        reward = f": reward {recorded.rewards[compared.turn - 1]:g}" if compared.turn else ""
        yield Text.assemble(("same ", GOOD), f"{where}{reward}, {compared.seconds:.3f} s")
        return
    found = compared.difference
    yield Text.assemble(("DIFF ", "bold red"), f"{where}: {redact.text(found.what)}")
    if compared.turn:
        yield from block("action", recorded.actions[compared.turn - 1])
    yield from block("recorded", str(found.recorded))
    yield from block("replayed", str(found.replayed))


def _found(done: list[Compared]) -> Mapping[str, Any] | None:
    found = done[-1].difference
    if found is None:
        return None
    return {"turn": done[-1].turn, "what": found.what, "recorded": found.recorded, "replayed": found.replayed}
