"""Search-R1's keys, where a command of its searches: what each is here.

Its lengths have other meanings than verl's: `max_prompt_length` bounds the context of a conversation, and
`max_response_length` one turn of it (`verl/trainer/config/ppo_trainer.yaml` and `search_r1/llm_agent/generation.py` of
PeterGriffinJin/Search-R1). Without a search, `do_search=false`, it is plain verl, and so are they.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.agent.source import SEARCH
from trainer.config.overrides import Override
from trainer.config.problems import Note
from trainer.config.releases import SEARCH_R1
from trainer.config.schema import Config

URL = "http://127.0.0.1:8000/retrieve"
NOT_SEARCHED = "nothing is searched"  # why its keys do nothing elsewhere
_ENV = "agent.env"
_MASKING = "actor_rollout_ref.actor.state_masking"
_TURNS, _TURN, _OBSERVED = "agent.max_turns", "agent.max_turn_tokens", "agent.max_observation_tokens"
_CONTEXT, _START, _REST = "agent.max_context_tokens", "data.max_prompt_length", "data.max_response_length"

# Its defaults, by the names that they have here.
DEFAULTS: Mapping[str, Any] = {
    _ENV: SEARCH,
    _TURNS: 11,  # ten, and one without a search
    _TURN: 512,
    _OBSERVED: 512,
    _CONTEXT: 512,
    _START: 256,
    _REST: 512,
    "data.truncation": "left",
    "retriever.url": URL,
    _MASKING: False,
}
_MEANINGS: Mapping[str, tuple[str, ...]] = {
    "max_turns": (_TURNS,),
    "data.max_start_length": (_START,),
    "data.max_obs_length": (_OBSERVED,),
    "data.max_prompt_length": (_CONTEXT, _REST),
    "data.max_response_length": (_TURN,),
}
_WHY = {
    "max_turns": "so many turns may search, and one more may not",
    "data.max_start_length": "a longer prompt loses its beginning",
    "data.max_obs_length": "a longer observation loses its end, and with it its closing tag",
    "data.max_prompt_length": "a turn begins with at most so many tokens before it, or the conversation ends",
    "data.max_response_length": "it bounds one turn",
}


def searches(dialect: str, overrides: Sequence[Override]) -> bool:
    """Whether the command means a search by Search-R1's keys, which then mean what they mean there."""
    given = {override.key: override.value for override in overrides}
    if given.get("do_search") is False or given.get(_ENV, SEARCH) != SEARCH:
        return False
    return dialect == SEARCH_R1 or given.get("do_search") is True


def meanings(key: str, value: Any) -> tuple[tuple[str, Any], ...] | None:
    """What `key` is in a command that searches; None where it is what it is elsewhere.

    >>> meanings("max_turns", 4), meanings("data.max_prompt_length", 4096)
    ((('agent.max_turns', 5),), (('agent.max_context_tokens', 4096), ('data.max_response_length', 4096)))
    """
    if key == "do_search":
        return ((_ENV, SEARCH if value else None),)
    if key not in _MEANINGS:
        return None
    if key == "max_turns" and isinstance(value, int):
        value += 1
    return tuple((name, value) for name in _MEANINGS[key])


def explained(key: str) -> str:
    """In a line: what a key of its is here. Empty for one that needs no explanation.

    >>> explained("data.max_response_length")
    'data.max_response_length is agent.max_turn_tokens here, as in Search-R1: it bounds one turn'
    """
    if key not in _MEANINGS:
        return ""
    return f"{key} is {' and '.join(_MEANINGS[key])} here, as in Search-R1: {_WHY[key]}"


def defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the command leaves as they are."""
    kept = {key: value for key, value in DEFAULTS.items() if key not in given}
    if given.get("retriever.serve") is not None:
        kept.pop("retriever.url", None)
    return kept


def default_notes(given: Mapping[str, Any]) -> Iterator[Note]:
    """Of those that change what is learned."""
    if _ENV not in given:
        what = "prompts become conversations with a retriever; docs/search.md says what is not as there"
        yield Note("dialect", _ENV, f"{_ENV} is {SEARCH}, as in search-r1: {what}")
    if _MASKING not in given:
        yield Note("dialect", _MASKING, f"{_MASKING} is False, as in search-r1: what was retrieved is trained on, too")
    if "retriever.url" in defaults(given):
        yield Note("dialect", "retriever.url", f"retriever.url is {URL}, as in search-r1")


def length_notes(config: Config) -> Iterator[Note]:
    """Whether conversations have room for all of their turns, by Search-R1's formula (the comment in its scripts)."""
    agent, start = config.agent, config.data.max_prompt_length
    turn, seen, limit = agent.max_turn_tokens, agent.max_observation_tokens, agent.max_context_tokens
    if turn is None or seen is None or limit is None:
        return
    searching = agent.max_turns - 1
    needed = start + turn * (searching - 1) + seen * searching
    if searching < 1 or needed <= limit:
        return
    whole = min((limit - start) // (turn + seen) + 1, agent.max_turns)
    yield Note(
        "risk",
        _CONTEXT,
        f"conversations may be too long for {_CONTEXT}={limit} (Search-R1's data.max_prompt_length): its formula, "
        "max_start_length + max_response_length * (max_turns - 1) + max_obs_length * max_turns, gives "
        f"{start} + {turn} * {searching - 1} + {seen} * {searching} = {needed}. Of {agent.max_turns} turns at their "
        f"limits, {whole} fit, and there the conversation ends (agent/ended/length); Search-R1 would lose its "
        "beginning while it generates, and its end while it trains. Raise data.max_prompt_length to "
        f"{needed}, or lower the others",
    )
