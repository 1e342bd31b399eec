"""Whether the engines draw what they are asked to draw: temperature, top-p, top-k, no repetitions, validation.

Sets of tokens are exact. All else rests on likelihood ratios (`plain_draws.py`): one of a right engine exceeds
e^EVIDENCE with a probability of at most e^-20 = 2e-9, whatever the model; a run looks at fewer than 150 of them, so
that it has a false alarm in fewer than 3 of 10 million runs. What could not be seen with twice that evidence is not
said to be right either: the check is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devkit.smoke.ask_engines import (
    AGAIN,
    FIRST_STEP,
    JUST_TOP_K,
    JUST_TOP_P,
    NEXT_STEP,
    TEMPERATURE,
    VALIDATION,
)
from devkit.smoke.checks.outcome import Outcome, look_at
from devkit.smoke.checks.recorded import LOGP_TOLERANCE
from devkit.smoke.plain_draws import EVIDENCE, Judged, Other, Repeats, Request
from trainer.rollout.settings import sampling_of

POWER = 2 * EVIDENCE
ANOTHER = 1.5  # factor between temperatures that are told apart
NEAR = 3.0  # nats between temperatures that fit as well
SAME_LOGIT, SAME_MASS = 1e-3, 1e-3  # fp32 and float64, also divided by a small temperature
TRAINING = (FIRST_STEP, TEMPERATURE, NEXT_STEP)
NAMES = ("temperature", "top-p", "top-k", "draws-differ", "validation")


@dataclass(frozen=True)
class Draws:
    """What was asked for, by name, and what the answers are."""

    requests: Mapping[str, Request]
    judged: Mapping[str, Judged]
    repeats: Mapping[str, Sequence[Repeats]]
    engine: str = "hf"
    passed_over: str = ""  # why nothing was asked


def heard(requests: Sequence[Request], answer: Mapping[str, Any], engine: str) -> Draws:
    """From what the warm process answers to `judge`."""

    def judged(each: Mapping[str, Any]) -> Judged:
        lists = {name: [Other(**other) for other in each[name]] for name in ("temperatures", "narrower")}
        return Judged(**{**each, **lists})

    return Draws(
        {request.name: request for request in requests},
        {name: judged(each) for name, each in answer["judged"].items()},
        {name: [Repeats(**each) for each in several] for name, several in answer["repeats"].items()},
        engine,
    )


def findings(draws: Draws) -> dict[str, Outcome]:
    """By check. What follows from another finding is none."""
    if why := draws.passed_over or _other_weights(draws):
        return {name: Outcome(None, why) for name in NAMES}
    greedy = _greedy(draws)
    differ = Outcome(None, "greedy rollouts are identical (see temperature)") if greedy else draws_differ(draws)
    apart = differ.ok is not False
    temperature = greedy or (
        drawn_at(draws) if apart else Outcome(None, "rows repeat each other (see draws-differ), so no test applies")
    )
    found = {"temperature": temperature, "draws-differ": differ, "validation": validation(draws)}
    spoiled = "" if temperature.ok is not False else "the temperature already differs (see temperature)"
    for name, check in {"top-p": top_p, "top-k": top_k}.items():
        found[name] = Outcome(None, spoiled) if spoiled else check(draws, apart=apart)
    return {name: found[name] for name in NAMES}


def _other_weights(draws: Draws) -> str:
    """Why nothing can be said of what engines draw that don't have the run's weights. vLLM's log-probs may be of the
    distribution after top-p and top-k."""
    request, seen = draws.requests[FIRST_STEP], draws.judged[FIRST_STEP]
    if seen.off <= LOGP_TOLERANCE or (draws.engine == "vllm" and request.filtered):
        return ""
    return f"the engine's log-probs are {seen.off:.1e} nats from the model's: see rollout-logprobs and weight-sync"


def _greedy(draws: Draws) -> Outcome | None:
    """The finding that nothing is drawn, if it is so. The first step's temperature is the command's own."""
    for name in TRAINING:
        request, seen = draws.requests[name], draws.judged[name]
        if request.temperature > 0 and seen.greedy >= EVIDENCE:
            said = f"all {seen.tokens} tokens of {_of(name)} are the most likely ones"
            why = "greedy, although do_sample=True" if name == FIRST_STEP else "as at a temperature far below it"
            return Outcome(False, f"{said} at a temperature of {request.temperature:.3g}: {why}: {_where(draws)}")
    return None


def drawn_at(draws: Draws) -> Outcome:
    """The tokens are likelier at the temperature that was asked for than at any other one."""
    for name in TRAINING:
        asked = draws.requests[name].temperature
        if other := _better(draws.judged[name]):
            said = f"the tokens of {_of(name)} were drawn at a temperature near {other.setting:.3g}, not {asked:.3g}"
            return Outcome(False, f"{said} (likelier by {other.evidence:.0f} nats): {_where(draws)}")
    asked, seen = draws.requests[TEMPERATURE].temperature, draws.judged[TEMPERATURE]
    confused = draws.requests[TEMPERATURE].others
    powers = [
        other.power
        for other in seen.temperatures
        if other.setting in confused and abs(math.log(other.setting / asked)) > math.log(ANOTHER)
    ]
    if min(powers, default=0.0) < POWER:
        return Outcome(None, f"{seen.tokens} tokens of this model could not tell {asked:.3g} from another temperature")
    against = f"another one would be likelier by {min(powers):.0f} nats, {EVIDENCE:.0f} are asked for"
    return Outcome(True, f"{seen.tokens} tokens drawn at a temperature of {asked:.3g} ({against})")


def _better(seen: Judged) -> Other | None:
    """The temperature that fits best, if there is enough evidence for it; of those that fit as well, the first."""
    most = max((other.evidence for other in seen.temperatures), default=0.0)
    if most < EVIDENCE:
        return None
    return next(other for other in seen.temperatures if other.evidence > most - NEAR)


def top_p(draws: Draws, *, apart: bool = True) -> Outcome:
    """No drawn token lies outside the nucleus, and they don't keep to a smaller one."""
    for name, request in draws.requests.items():
        above = draws.judged[name].above
        if request.top_p < 1 and above >= request.top_p + SAME_MASS:
            said = f"{_of(name)} has a token with {above:.0%} of the probability before it, at top_p={request.top_p:g}"
            return Outcome(False, f"{said}: {_where(draws)}")
    return Outcome(*_filtered(draws, JUST_TOP_P, "top_p", draws.requests[JUST_TOP_P].top_p, apart))


def top_k(draws: Draws, *, apart: bool = True) -> Outcome:
    """No drawn token lies outside the likeliest k, and they don't keep to fewer."""
    for name, request in draws.requests.items():
        behind = draws.judged[name].behind
        if 0 < request.top_k <= behind:
            said = f"{_of(name)} has a token with {behind} likelier ones, at top_k={request.top_k}"
            return Outcome(False, f"{said}: {_where(draws)}")
    return Outcome(*_filtered(draws, JUST_TOP_K, "top_k", draws.requests[JUST_TOP_K].top_k, apart))


def _filtered(draws: Draws, name: str, key: str, asked: float, apart: bool) -> tuple[bool | None, str]:
    seen = draws.judged[name]
    less = [other.setting for other in seen.narrower if other.evidence >= EVIDENCE]
    if less and apart:
        return False, f"all tokens at {key}={asked:g} keep to {key}={min(less):.3g}: {_where(draws)}"
    if seen.unfiltered < POWER:
        return None, f"{seen.tokens} tokens of this model may keep to {key}={asked:g} by themselves"
    return True, f"{seen.tokens} tokens keep to {key}={asked:g}, and none to less"


def draws_differ(draws: Draws) -> Outcome:
    """Rows, samples, engines and steps have no more tokens in common than rows that are drawn apart."""
    seen = [(name, each) for name, several in draws.repeats.items() for each in several]
    for name, each in seen:
        if name in TRAINING and each.evidence >= EVIDENCE:
            said = f"{each.what} repeat each other: {each.equal} of {each.tokens} tokens of {_of(name)} are equal"
            return Outcome(False, f"{said}, {each.expected:.0f} expected by chance: {_where(draws)}")
    told = list(dict.fromkeys(each.what for name, each in seen if name in TRAINING and each.power >= POWER))
    if not told:
        return Outcome(None, "copies would look like draws from this model")
    return Outcome(True, f"{', '.join(told)} share no more tokens than chance explains")


def validation(draws: Draws) -> Outcome:
    """Validation is greedy or sampled as `val_kwargs` say, and the same weights answer twice alike."""
    for name in (VALIDATION, AGAIN):
        request, seen = draws.requests[name], draws.judged[name]
        if request.temperature == 0 and seen.short > SAME_LOGIT:
            odd = seen.tokens - seen.likeliest
            said = f"{odd} of {seen.tokens} validation tokens are not the likeliest, though val_kwargs.do_sample=False"
            return Outcome(False, f"{said}: {_where(draws)}")
        if request.temperature > 0 and (wrong := _wrongly_sampled(request, seen)):
            return Outcome(False, f"{wrong}: {_where(draws)}")
    one, two = (draws.requests[name].samples for name in (VALIDATION, AGAIN))
    changed = sum(a.response != b.response for a, b in zip(one, two, strict=True))
    kind = "greedy" if draws.requests[VALIDATION].temperature == 0 else "sampled as configured"
    told = f"{draws.judged[VALIDATION].tokens} tokens are {kind}"
    if draws.engine != "hf":  # equal logits aside, greedy answers are equal already
        return Outcome(True, told)
    if changed:
        said = f"validation with the same weights answered {changed} of {len(one)} prompts differently the second time"
        return Outcome(False, f"{said}: {_where(draws)}")
    return Outcome(True, f"{told}, and the same both times")


def _wrongly_sampled(request: Request, seen: Judged) -> str:
    if seen.greedy >= EVIDENCE:
        return f"all {seen.tokens} validation tokens are the likeliest, though val_kwargs.do_sample=True"
    if other := _better(seen):
        return f"validation draws at a temperature near {other.setting:.3g}, not {request.temperature:.3g}"
    return ""


def _of(name: str) -> str:
    """The request, in a sentence."""
    return "the run's first step" if name == FIRST_STEP else f'the request "{name}"'


def _where(draws: Draws) -> str:
    """Where settings become a request, and requests become tokens."""
    from trainer.rollout.remote import RemoteEngine  # for a failure alone: they take a second
    from trainer.rollout.sampling import draw

    engine = draw if draws.engine == "hf" else RemoteEngine.generate
    return f"{look_at(sampling_of)} and {look_at(engine).removeprefix('look at ')}"
