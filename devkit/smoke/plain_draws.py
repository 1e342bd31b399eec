"""Drawn tokens beside the distributions that they should be of: float64, a plain model, rows without padding.

What the run's own engines answered comes from `ask_engines.py`; the weights are those of the model's folder. It runs
in the warm process, which has torch and transformers, and not Ray.

Chances are bounded by likelihood ratios. With tokens of p, the product of q(token) / p(token) has the mean 1 for any
q, whatever was drawn before; so it exceeds e^x with a probability of at most e^-x (Markov's inequality), and needs no
normal distribution. Its logarithm is called evidence here: for q, and against p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from trainer.precision import in_precision

# The temperature of requests makes a new model's distributions as uneven as this share of the greatest entropy: with
# less, the likeliest token is always drawn, with more all are alike, and neither would show a mistake.
ENTROPY_SHARE = 0.45
TEMPERATURES = (1e-3, 10.0)  # between which it is looked for
# By these factors of a temperature, others are tried; and these shares of top-p and top-k.
FACTORS = (1 / 8, 1 / 4, 1 / 2, 1 / math.sqrt(2), math.sqrt(2), 2.0, 4.0, 8.0)
SHARES = tuple(eighth / 8 for eighth in range(1, 8))
TILTS = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the log-odds that two tokens are equal
EVIDENCE = 20.0  # nats that count: see `checks/draws.py`
NEARLY = 1e-4  # how far logits and masses in fp32 may be from those in float64


@dataclass(frozen=True)
class Sample:
    """A prompt and its response."""

    prompt: list[int]
    response: list[int]
    uid: int
    sample: int
    engine: int
    logp: list[float]  # of the response, as the engine has it


@dataclass(frozen=True)
class Request:
    """One call of `generate`, what it asked for and what came of it."""

    name: str
    temperature: float  # 0: greedy
    top_p: float
    top_k: int  # -1: off
    others: list[float]  # temperatures that a mistake could draw at
    samples: list[Sample]

    @property
    def filtered(self) -> bool:
        return self.top_p < 1 or self.top_k > 0


@dataclass(frozen=True)
class Other:
    """Another setting, how much more the tokens speak for it, and how much more they would if they were drawn so."""

    setting: float
    evidence: float
    power: float


@dataclass(frozen=True)
class Judged:
    """The tokens of one request. Evidence is in nats; without any, it is 0."""

    tokens: int
    off: float  # nats between the engine's log-probs and these, at the temperature that fits best
    likeliest: int  # how many are the likeliest tokens
    greedy: float  # evidence that they always are
    short: float  # of the likeliest tokens, the logits that a drawn one is short of it at most
    temperatures: list[Other]
    above: float  # the most mass that the tokens likelier than a drawn one have
    behind: int  # the most tokens that are likelier than a drawn one
    unfiltered: float  # had top-p or top-k been ignored: how surprising it would be not to see it
    narrower: list[Other]  # top-p or top-k less than asked for


@dataclass(frozen=True)
class Repeats:
    """Pairs of rows that should have been drawn apart."""

    what: str
    equal: int  # tokens, at the same place
    tokens: int
    expected: float  # of `equal`
    evidence: float  # that they are equal more often than by chance
    power: float  # that there would be, were the rows copies


@dataclass(frozen=True)
class Choice:
    """What requests depend on of the model."""

    temperature: float
    vocabulary: int  # token ids below it have an embedding


def choose(model: str, seed: int) -> dict[str, Any]:
    """A `Choice`, for the warm process."""
    network = _network(model)
    vocabulary = int(network.get_input_embeddings().weight.shape[0])
    ids = torch.randint(vocabulary, (1, 64), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits_TV = network(input_ids=ids, use_cache=False).logits[0]
    low, high = TEMPERATURES
    for _ in range(30):  # entropy rises with temperature
        middle = math.sqrt(low * high)
        even = float(_entropy(_log_probs(logits_TV, middle)).mean()) > ENTROPY_SHARE * math.log(vocabulary)
        low, high = (low, middle) if even else (middle, high)
    return asdict(Choice(float(f"{high:.2g}"), vocabulary))


def judge(model: str, requests: Sequence[Mapping[str, Any]], pairs: Sequence[str]) -> dict[str, Any]:
    """Judged by request, and repetitions, for the warm process. `pairs`: two requests alike but for their step."""
    network = _network(model)
    asked = [Request(**{**each, "samples": [Sample(**sample) for sample in each["samples"]]}) for each in requests]
    judged, repeats = judge_all(network, [_ended(request, network.config.eos_token_id) for request in asked], pairs)
    return {
        "judged": {name: asdict(each) for name, each in judged.items()},
        "repeats": {name: [asdict(each) for each in of] for name, of in repeats.items()},
    }


@torch.no_grad()
def judge_all(
    network: nn.Module, requests: Sequence[Request], pairs: Sequence[str]
) -> tuple[dict[str, Judged], dict[str, list[Repeats]]]:
    """See `judge`."""
    logits = {request.name: _logits(network, request.samples) for request in requests}
    judged, repeats, at = {}, {}, {}
    for request in requests:
        logits_NV = torch.cat(logits[request.name])
        token_N = torch.tensor([token for sample in request.samples for token in sample.response])
        judged[request.name] = found = _judged(request, logits_NV, token_N)
        if request.temperature > 0 and not request.filtered:
            # Rows at a wrong temperature are no copies of one another: how often they agree depends on the real one.
            at[request.name] = best(found, request.temperature)
            rows = list(zip(request.samples, logits[request.name], strict=True))
            repeats[request.name] = _repeats(rows, at[request.name])
    first, second = ([request for request in requests if request.name == name] for name in pairs)
    for one, other in zip(first, second, strict=True):
        mine, theirs = (list(zip(x.samples, logits[x.name], strict=True)) for x in (one, other))
        repeats[one.name] += _compared("steps", zip(mine, theirs, strict=True), at[one.name])
    return judged, repeats


def _ended(request: Request, eos: int | Sequence[int] | None) -> Request:
    """Up to the first EOS: a mask that is too long is the finding of another check."""
    ends = {eos} if isinstance(eos, int) else set(eos or ())

    def until(sample: Sample) -> Sample:
        length = next((at + 1 for at, token in enumerate(sample.response) if token in ends), len(sample.response))
        return replace(sample, response=sample.response[:length], logp=sample.logp[:length])

    return replace(request, samples=[until(sample) for sample in request.samples])


def best(judged: Judged, temperature: float) -> float:
    """The temperature that the tokens speak for: the one asked for, unless there is enough evidence for another."""
    other = max(judged.temperatures, key=lambda each: each.evidence, default=None)
    return temperature if other is None or other.evidence < EVIDENCE else other.setting


# -------------------------------------------------------------------------------------------------- one request


def _judged(request: Request, logits_NV: Tensor, token_N: Tensor) -> Judged:
    temperature = request.temperature or 1.0
    logp_NV = _log_probs(logits_NV, temperature)
    p_NV = logp_NV.exp()
    own_N1 = logits_NV.gather(-1, token_N[:, None])
    likelier_NV = logits_NV > own_N1 + NEARLY * max(1.0, float(logits_NV.abs().max()))
    top_N = logits_NV.max(-1).values
    likeliest = int((~likelier_NV.any(-1)).sum())
    every = likeliest == len(token_N)
    return Judged(
        tokens=len(token_N),
        off=_off(request, logits_NV, token_N),
        likeliest=likeliest,
        greedy=-float(logp_NV.max(-1).values.sum()) if every else 0.0,
        short=float((top_N - own_N1[:, 0]).max()),
        temperatures=[] if request.filtered else _temperatures(request, logits_NV, token_N),
        above=float((p_NV * likelier_NV).sum(-1).max()),
        behind=int(likelier_NV.sum(-1).max()),
        **_filters(request, p_NV, likelier_NV),
    )


def _off(request: Request, logits_NV: Tensor, token_N: Tensor) -> float:
    theirs_N = torch.tensor([logp for sample in request.samples for logp in sample.logp], dtype=torch.float64)
    mine = (_log_probs(logits_NV, other) for other in (request.temperature or 1.0, *request.others))
    return min(float((logp_NV.gather(-1, token_N[:, None])[:, 0] - theirs_N).abs().max()) for logp_NV in mine)


def _temperatures(request: Request, logits_NV: Tensor, token_N: Tensor) -> list[Other]:
    asked = request.temperature
    if asked <= 0:
        return []
    logp_NV, found = _log_probs(logits_NV, asked), []
    for other in dict.fromkeys([*request.others, *(asked * factor for factor in FACTORS)]):
        gain_NV = _log_probs(logits_NV, other) - logp_NV
        power = float((_log_probs(logits_NV, other).exp() * gain_NV).sum())
        found.append(Other(other, float(gain_NV.gather(-1, token_N[:, None]).sum()), power))
    return found


def _filters(request: Request, p_NV: Tensor, likelier_NV: Tensor) -> dict[str, Any]:
    """What top-p or top-k leave, and less of them. Of both at once nothing is known but what both leave."""
    if (request.top_p < 1) == (request.top_k > 0):
        return {"unfiltered": 0.0, "narrower": []}
    mass: Callable[[Tensor, float], Tensor]
    if request.top_p < 1:
        asked, seen = request.top_p, float((p_NV * likelier_NV).sum(-1).max())
        settings, mass = [asked * share for share in SHARES], _nucleus
    else:
        asked, seen = float(request.top_k), float(likelier_NV.sum(-1).max())
        settings, mass = [float(k) for k in range(1, request.top_k)], _first
    whole_N = mass(p_NV, asked)
    narrower = []
    for setting in settings:
        surprise = float((whole_N / mass(p_NV, setting)).log().sum())
        narrower.append(Other(setting, surprise if seen < setting else 0.0, surprise))
    return {"unfiltered": -float(whole_N.log().sum()), "narrower": narrower}


def _nucleus(p_NV: Tensor, top_p: float) -> Tensor:
    """The mass of the fewest tokens, the likeliest first, that have `top_p` together."""
    sums_NV = p_NV.sort(-1, descending=True).values.cumsum(-1)
    last_N = (sums_NV < top_p).sum(-1).clamp(max=p_NV.shape[-1] - 1)
    return sums_NV.gather(-1, last_N[:, None])[:, 0]


def _first(p_NV: Tensor, top_k: float) -> Tensor:
    """The mass of the likeliest `top_k` tokens."""
    return p_NV.topk(int(top_k)).values.sum(-1)


# ------------------------------------------------------------------------------------------- rows beside rows

Rows = Sequence[tuple[Sample, Tensor]]  # with the logits [T, V] of its tokens
Pairs = Iterable[tuple[tuple[Sample, Tensor], tuple[Sample, Tensor]]]


def _repeats(rows: Rows, temperature: float) -> list[Repeats]:
    """Rows side by side that a mistake could give the same random numbers. No row is in two pairs of a kind."""
    kinds: dict[str, Callable[[Sample], Any]] = {
        "samples of a prompt": lambda sample: sample.uid,
        "prompts": lambda sample: (sample.engine, sample.sample),
    }
    found = []
    for what, key in kinds.items():
        beside = [pair for alike in _grouped(rows, key) for pair in zip(alike[::2], alike[1::2], strict=False)]
        found += _compared(what, beside, temperature)
    engines = _grouped(rows, lambda sample: sample.engine)
    beside = [pair for a, b in zip(engines[::2], engines[1::2], strict=False) for pair in zip(a, b, strict=False)]
    return found + _compared("engines", beside, temperature)


def _grouped(rows: Rows, key: Callable[[Sample], Any]) -> list[list[tuple[Sample, Tensor]]]:
    groups: dict[Any, list[tuple[Sample, Tensor]]] = {}
    for row in rows:
        groups.setdefault(key(row[0]), []).append(row)
    return list(groups.values())


def _compared(what: str, pairs: Pairs, temperature: float) -> list[Repeats]:
    """Nothing if there are none. Two tokens drawn apart are equal with a chance c, the sum of p(token) q(token)."""
    equal, chance = [], []
    for (one, logits_TV), (other, logits_UV) in pairs:
        for t, (mine, theirs) in enumerate(zip(one.response, other.response, strict=False)):
            p, q = (_log_probs(logits[t], temperature).exp() for logits in (logits_TV, logits_UV))
            equal.append(float(mine == theirs))
            chance.append(float((p * q).sum()))
    if not equal:
        return []
    equal_N, chance_N = torch.tensor(equal).double(), torch.tensor(chance).double().clamp(1e-12, 1.0)

    def evidence(is_N: Tensor) -> float:
        """For chances whose odds are e^tilt as large."""
        return max(float((tilt * is_N - (1 + chance_N * math.expm1(tilt)).log()).sum()) for tilt in TILTS)

    return [
        Repeats(
            what,
            int(equal_N.sum()),
            len(equal),
            float(chance_N.sum()),
            evidence(equal_N),
            evidence(torch.ones_like(equal_N)),
        )
    ]


# ---------------------------------------------------------------------------------------------------- the model


def _network(model: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False, **in_precision(torch.float64)).eval()


def _logits(network: nn.Module, samples: Sequence[Sample]) -> list[Tensor]:
    """By row, the logits [T, V] that its tokens were drawn from; rows of the same lengths in one pass."""
    found: dict[int, Tensor] = {}
    for rows in _same_lengths(samples):
        ids = torch.tensor([samples[row].prompt + samples[row].response for row in rows])
        first = len(samples[rows[0]].prompt)
        logits_BTV = network(input_ids=ids, use_cache=False).logits[:, first - 1 : -1]
        found |= dict(zip(rows, logits_BTV.double(), strict=True))
    return [found[row] for row in range(len(samples))]


def _same_lengths(samples: Sequence[Sample]) -> Iterator[list[int]]:
    def lengths(row: int) -> tuple[int, int]:
        return len(samples[row].prompt), len(samples[row].response)

    for _, rows in groupby(sorted(range(len(samples)), key=lengths), lengths):
        yield list(rows)


def _log_probs(logits: Tensor, temperature: float) -> Tensor:
    return (logits / temperature).log_softmax(-1)


def _entropy(logp: Tensor) -> Tensor:
    return -(logp.exp() * logp).sum(-1)
