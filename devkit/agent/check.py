"""`devkit agent check`: the trainer's checks of an environment, printed."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from devkit.console import emit, result
from devkit.palette import CAUTION, GOOD
from devkit.records import AgentCheckRecord, CheckResult, Status
from trainer.agent.check import ACTIONS, Wish, check
from trainer.agent.player import read_environment
from trainer.agent.source import Source
from trainer.config import ConfigErrors, resolve
from trainer.config.agents import agent_problems, env_kwargs
from trainer.config.schema import Config
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
    wish = Wish(options.episodes, options.actions or ACTIONS, limit, tokenizer)
    source = Source(options.env, read_environment(config.agent), env_kwargs(config.agent))
    found: list[CheckResult] = []
    page = result()
    for told in check(source, config, wish):
        found.append(CheckResult(told.name, told.status, told.detail, told.seconds))
        if not options.json:
            page.print(_line(found[-1]), soft_wrap=True)
    record = AgentCheckRecord(options.env, tuple(found))
    if options.json:
        emit(record.to_json())
    return 0 if record.verdict == "pass" else 1


def config_of(options: CheckOptions) -> Config:
    """What the words ask for. Of a whole command's problems only those of its environment matter here."""
    resolved = resolve([f"agent.env={_quoted(options.env)}", *options.overrides])
    wrong = [*resolved.problems, *(each for each in agent_problems(resolved.config) if each.key.startswith("agent."))]
    if wrong:
        raise ConfigErrors(wrong)
    return resolved.config


def _quoted(env: str) -> str:
    escaped = env.replace("'", "\\'")
    return f"'{escaped}'"


def _line(told: CheckResult) -> Text:
    mark, style = _MARKS[told.status]
    return Text.assemble((f"{mark:<5}", style), (f"{told.name:<12}", "bold"), told.detail)
