"""`devkit agent check`: the trainer's checks of an environment, printed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from devkit.console import emit, result, talk
from devkit.errors import UsageError
from devkit.logs import redact
from devkit.palette import CAUTION, GOOD
from devkit.records import AgentCheckRecord, CheckResult, Status
from trainer.agent.check import ACTIONS, Told, Wish, check
from trainer.agent.others import takes_rows
from trainer.agent.player import read_environment
from trainer.agent.row_options import options_of
from trainer.agent.source import Source
from trainer.config import ConfigErrors, note_lines, resolve
from trainer.config.agents import agent_notes, agent_problems, constructor, estimator_problems
from trainer.config.check import own_findings
from trainer.config.retrievers import retriever_problems
from trainer.config.schema import Config
from trainer.data.parquet import read_parts
from trainer.retrieval import Retriever
from trainer.retrieval.meeting import look
from trainer.retrieval.node import given
from trainer.tokenizer import load_tokenizer

_MARKS: dict[Status, tuple[str, str]] = {"pass": ("ok", GOOD), "fail": ("FAIL", "bold red"), "skip": ("skip", CAUTION)}


@dataclass(frozen=True)
class CheckOptions:
    env: str
    overrides: tuple[str, ...]
    episodes: int
    actions: tuple[str, ...]
    timeout: float | None
    json: bool = False


def main(options: CheckOptions) -> int:
    """The exit code: 0 nothing failed, 1 something did. Raises ConfigError for words and files of no use."""
    config = config_of(options)
    model = config.actor_rollout_ref.model
    tokenizer = load_tokenizer(model) if model.path or model.tokenizer_path else None
    limit = options.timeout if options.timeout is not None else config.agent.turn_timeout
    wish = Wish(options.episodes, options.actions or ACTIONS, limit, tokenizer, _rows(config, options.episodes))
    source = Source(options.env, read_environment(config), constructor(config))
    found: list[CheckResult] = []
    page = result()
    for told in _all(source, config, wish):
        found.append(CheckResult(told.name, told.status, redact.text(told.detail), told.seconds))
        if not options.json:
            page.print(_line(found[-1]), soft_wrap=True)
    record = AgentCheckRecord(options.env, tuple(found))
    if options.json:
        emit(record.to_json())
    return 0 if record.verdict == "pass" else 1


def _rows(config: Config, count: int) -> list[Mapping[str, Any]]:
    """Of an environment that takes rows, the first of them. Raises DataError, UsageError."""
    if not takes_rows(config.agent.env):
        return []
    if not config.data.train_files:
        said = f"{config.agent.env} is played with rows of data"
        raise UsageError(said, hint="give some: data.train_files=FILE.parquet")
    found = list[Mapping[str, Any]]()
    for part in read_parts(config.data.train_files, config.data):
        part.whole_key = config.data.prompt_key
        rows = (part.row(i) for i in range(min(len(part), count - len(found))))
        found += [options_of(row.extra_info) or {} for row in rows]
    return found


def _all(source: Source, config: Config, wish: Wish) -> Iterator[Told]:
    """With `retriever.url`, of the retriever first, which is then the environment's."""
    wanted = config.retriever
    if wanted.url is None:
        yield from check(source, config, wish)
        return
    retriever, began = Retriever(wanted.url, wanted.topk, wanted.timeout), time.monotonic()
    met = look(retriever)
    took_s = time.monotonic() - began
    yield Told("retriever", "pass", f"{met}; a search took {met.seconds * 1000:.0f} ms", took_s)
    with given(retriever):
        yield from check(source, config, wish)


def config_of(options: CheckOptions) -> Config:
    """What the words ask for; notes say what of it has no effect.

    Of a whole command's problems only those of its environment matter here. Raises ConfigErrors, and UsageError for no
    environment, or two.
    """
    if not options.env.strip():
        raise UsageError("ENV is empty", hint="name an environment: frozen_lake, or one of yours as FILE.py:CLASS")
    for word in options.overrides:
        if word.lstrip("+").startswith("agent.env=") and word.partition("=")[2].strip("'\"") != options.env:
            raise UsageError(f"{word} is given beside {options.env}", hint="give one of the two, as ENV")
    resolved = resolve([f"agent.env={_quoted(options.env)}", *options.overrides])
    config = resolved.config
    of_retriever = (each for each in retriever_problems(config) if each.key.startswith(("agent.", "retriever.")))
    found = [*agent_problems(config), *estimator_problems(config), *of_retriever]
    wrong = [*resolved.problems, *own_findings(resolved, found)]
    if wrong:
        raise ConfigErrors(wrong)
    for line in note_lines([note for note in (*resolved.notes, *agent_notes(config)) if note.kind == "inert"]):
        talk().print(redact.text(line), soft_wrap=True)
    return config


def _quoted(env: str) -> str:
    escaped = env.replace("'", "\\'")
    return f"'{escaped}'"


def _line(told: CheckResult) -> Text:
    mark, style = _MARKS[told.status]
    return Text.assemble((f"{mark:<5}", style), (f"{told.name:<12}", "bold"), told.detail)
