"""What the update of a model takes of a GPU, by its shape, and the quickest way to train it that fits.

The formula is for FSDP2 with AdamW. Every number in it that was measured, not derived, stands at the top. Legend: D
hidden, F feed-forward, A queries, K keys: numbers per token. Nothing here asks a device; see `trainer.fitting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from trainer.config.shape import Shape

SHARE = 0.9  # of what is free: the allocator's gaps, and what the formula does not know
# Of the activations that compiled layers would keep, most first. So many that one is at most 6 % slower than the one
# before: the plan that just misses `SHARE` might have run.
BUDGETS = (0.75, 0.57, 0.5, 0.35, 0.25, 0.1)
LIGHT = 0.75  # a budget from which on no product is computed again: at most as slow as gathering parameters again
USUAL = 0.5  # the budget where nothing is known of sizes
EAGER = 1.6  # what layers keep that are not compiled, over what compiled ones keep: 1.4 to 1.75 by architecture
KEPT_LOGITS = 1 / 16  # of a GPU's memory, for logits that are kept for the gradient: 5 GiB of 80
INDEXED_BY_32_BITS = 2**31 - 1  # elements of a tensor, logits too: kernels that count further are slower
CHUNK_LOGITS = 2**28  # logits at once where they are not kept: 1 GiB in float32
GIB = 2**30

FULL, SELECTIVE, NONE = "full", "selective", "none"


@dataclass(frozen=True)
class Plan:
    """How a model is trained: what is compiled, recomputed, and kept whole."""

    compiled: bool
    recompute: str  # full | selective | none
    budget: float | None  # of activations kept, where selective and compiled
    reshard: bool

    def __str__(self) -> str:
        if self.recompute == NONE:
            recomputed = "nothing recomputed"
        elif self.recompute == FULL:
            recomputed = "all recomputed"
        elif self.budget is None:
            recomputed = "all but products recomputed"
        else:
            recomputed = f"recomputed down to {self.budget:g} of the activations"
        compiled = "layers compiled" if self.compiled else "layers not compiled"
        return f"{compiled}, {recomputed}, parameters {'sharded again after each layer' if self.reshard else 'whole'}"


@dataclass(frozen=True)
class Load:
    """What an update computes on one rank, and in what."""

    tokens: int  # of a pass, the most
    answers: int  # tokens of it whose logits are computed; 0: a critic
    ranks: int  # that share the model
    several: bool  # passes to a mini-batch: gradients wait while the next pass computes
    master: int = 4  # bytes of a parameter, its gradient and each of its moments
    compute: int = 2  # bytes of a number in the computation
    fused: bool = True  # log-probs from logits are compiled
    device: int = 0  # bytes of the whole GPU
    trained: int | None = None  # parameters, in float32 where they are adapters; None: all of the model's
    moments_wait: bool = False  # in host memory
    gradients_wait: bool = False


def activations(shape: Shape) -> int:
    """Numbers per token that a compiled layer keeps for its gradient, nothing recomputed."""
    heads = (3 if shape.normed else 2) * (shape.queries + shape.keys)
    return (3 if shape.gated else 2) * shape.feed_forward + 4 * shape.hidden + heads


def kept(shape: Shape, plan: Plan) -> float:
    """Numbers per token that a layer keeps under `plan`."""
    every = activations(shape)
    if plan.recompute == FULL:
        return shape.hidden
    if plan.recompute == NONE:
        return every if plan.compiled else EAGER * every
    if plan.budget is None or not plan.compiled:  # products: queries, keys, values, attention, output, feed-forward
        return 3 * shape.hidden + 2 * (shape.queries + shape.keys) + 2 * shape.feed_forward
    room = plan.budget * (every - shape.hidden)
    return shape.hidden + (room if shape.mixture else _fill(shape, room))


def _fill(shape: Shape, room: float) -> int:
    """What torch's compiler keeps beside a layer's input: of the products whose results fit, the dearest together.

    Attention comes first: its work grows with the square of the length.
    """
    width, queries, keys, inner = shape.hidden, shape.queries, shape.keys, shape.feed_forward
    dear = 64 * width * queries
    costs = [(queries, dear), (queries, width * queries), (width, queries * width), *[(keys, width * keys)] * 2]
    costs += [(inner, width * inner)] * (2 if shape.gated else 1)
    sets = (some for count in range(len(costs) + 1) for some in combinations(costs, count))
    fitting = (some for some in sets if sum(size for size, _ in some) <= room)
    return sum(size for size, _ in max(fitting, key=lambda some: sum(cost for _, cost in some)))


def peak(shape: Shape, load: Load, plan: Plan) -> int:
    """Bytes of the device that an update takes at its fullest, the model's own state included.

    It is fullest when the gradient sets out from the logits, when the last gradient is reduced, or in the optimizer.
    """
    weights, gradients = load.master * shape.parameters / load.ranks, _gradients(shape, load)
    moments = 2 * gradients
    state = weights + (0 if load.moments_wait else moments)
    whole = load.compute * (_at_once(shape) if plan.reshard else shape.parameters)
    waiting = gradients if load.several and not load.gradients_wait else 0
    outset = state + waiting + whole + _pass(shape, load, plan)
    reduced = state + gradients + whole + (4 * shape.of_embeddings if load.trained is None else 0)
    return int(max(outset, reduced, weights + gradients + moments))


def _gradients(shape: Shape, load: Load) -> float:
    """Bytes on one rank."""
    if load.trained is not None:
        return 4 * load.trained / load.ranks
    return load.master * shape.parameters / load.ranks


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Of adapters of all linear modules in the layers: each adds its two widths times the rank."""
    widths = [(shape.hidden, shape.queries)] * 2 + [(shape.hidden, shape.keys)] * 2
    widths += [(shape.hidden, shape.all_feed_forward)] * (3 if shape.gated else 2)
    return shape.layers * rank * sum(map(sum, widths))


def resident(shape: Shape, load: Load, plan: Plan | None, *, parameters_wait: bool) -> int:
    """Bytes that a model keeps of the device while others work; a frozen one without a `plan`."""
    shard = load.master * shape.parameters / load.ranks
    whole = load.compute * shape.parameters if plan is not None and not plan.reshard else 0
    moments = 2 * _gradients(shape, load) if plan is not None and not load.moments_wait else 0
    return int((0 if parameters_wait else shard + whole) + moments)


def _at_once(shape: Shape) -> int:
    """Parameters that are whole where layers are sharded again: the embeddings, a layer, and the one that comes."""
    return shape.of_embeddings + 2 * shape.of_layer


def _pass(shape: Shape, load: Load, plan: Plan) -> float:
    """Bytes of a pass when its gradient sets out."""
    layer = load.compute * activations(shape) * (1 if plan.compiled else EAGER)
    held = load.compute * kept(shape, plan)
    # The last layer's gradient: what it has to compute again, and the gradients of what is widest in it.
    backward = max(0, layer - held) + load.compute * 2 * (shape.feed_forward + shape.hidden)
    hidden = 2 * load.compute * shape.hidden  # embedded, and the last one normalised
    return load.tokens * (shape.layers * held + hidden) + max(_head(shape, load), load.tokens * backward)


def _head(shape: Shape, load: Load) -> float:
    """Bytes of logits and of the output layer's gradient, which lie there together."""
    if not load.answers:
        return 0
    every = load.compute * shape.vocabulary * load.answers
    most = min(KEPT_LOGITS * load.device, load.compute * INDEXED_BY_32_BITS) if load.device else every
    logits, over = min(every, most), every > most
    chunk = load.compute * CHUNK_LOGITS if over else 0
    plain = 0 if load.fused else 3 * 4 / load.compute * max(logits, chunk)  # three float32 of what is looked at
    # Bytes of a number of the output layer's gradient, where it has one.
    summed = 0 if load.trained is not None else 4 if over else load.compute
    return logits + chunk + plain + summed * shape.vocabulary * shape.hidden


def plans(compiled: bool, wanted: Plans) -> Iterator[Plan]:
    """Those that are allowed, the quickest first: recomputing products costs more than gathering parameters again."""
    levels: list[tuple[str, float | None]] = [(NONE, None)]
    levels += [(SELECTIVE, budget) for budget in wanted.budgets(compiled)] + [(FULL, None)]
    light = [level for level in levels if level[0] == NONE or (level[1] or 0) >= LIGHT]
    for group in (light, *([level] for level in levels if level not in light)):
        for reshard in (False, True):
            for recompute, budget in group:
                if wanted.allows(recompute, reshard):
                    yield Plan(compiled, recompute, budget, reshard)


@dataclass(frozen=True)
class Plans:
    """What the command gives; None is to be chosen."""

    recompute: str | None = None  # full | selective | none
    some: bool = False  # checkpointing was asked for: something is recomputed
    budget: float | None = None
    reshard: bool | None = None

    def allows(self, recompute: str, reshard: bool) -> bool:
        least = self.some and recompute == NONE
        return self.recompute in (None, recompute) and self.reshard in (None, reshard) and not least

    def budgets(self, compiled: bool) -> tuple[float | None, ...]:
        """Without compilation the host decides on each operator: quicker only where somebody knows it to be."""
        if not compiled:
            return (None,) if self.recompute == SELECTIVE else ()
        return BUDGETS if self.budget is None else (self.budget,)


@dataclass(frozen=True)
class Fit:
    """A plan, what it takes and what there is, in bytes.

    `least` is what it takes with the shortest passes; `quickest` what the quickest plan takes, where it is not that.
    """

    plan: Plan
    needs: int
    room: int
    least: int
    quickest: int | None = None

    @property
    def fits(self) -> bool:
        return self.needs <= self.room


def first_fit(shape: Shape, load: Load, compiled: bool, wanted: Plans, room: int) -> Fit:
    """The first of `plans` that fits into `room`; where none does, the one that takes least."""
    found = [(plan, peak(shape, load, plan)) for plan in plans(compiled, wanted)]
    plan, needs = next((each for each in found if each[1] <= room), min(found, key=lambda each: each[1]))
    least = peak(shape, replace(load, tokens=0, answers=0, several=False), plan)
    return Fit(plan, needs, room, least, found[0][1] if found[0][0] != plan else None)
