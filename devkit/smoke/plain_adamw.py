"""AdamW written out, and what a run's own optimizer did beside it, as its saved states tell.

The state before an update and the one after it show more than the way of the parameters: how much of the old mean is
left in the new one is beta, what came to it is the gradient as it was applied, and from mean and mean square follows
the way. Each of them is compared on its own, so that the small gradient of a made-up mini-batch is seen beside the
large ones of the run before it. Runs in the warm process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from devkit.smoke import plain_lora
from trainer.config.schema import OptimConfig

EPS = 1e-8  # AdamW's, which the trainer leaves at torch's default
ROUNDING = 2.0**-22  # of fp32 numbers that are added: two bits more than the last one
FEW = 1e-3  # of the whole gradient: a parameter's own that is smaller is compared with this instead

State = dict[str, Tensor]


@dataclass(frozen=True)
class Applied:
    """What the run's optimizer did. All but `kept` are shares of what should have been: 0 is right, or 1 for `taken`.

    Gradients are what came to the running mean in all steps of the update; `kept` is what is left of the mean before.
    """

    steps: int
    kept: float
    kept_wanted: float
    taken: float  # of the gradient, after it was clipped
    decay: float  # what came to it of the parameter itself: nothing, in AdamW
    gradients: dict[str, float]  # by parameter: how far its direction is off
    squares: dict[str, float]  # how far the mean square is off, of its way
    ways: dict[str, float]  # how far the parameter is off, of its way
    strayed: list[str] = field(default_factory=list)  # parameters that do not train, and have changed


class AdamW:
    """Loshchilov and Hutter 2019, algorithm 2, from the state of a save; the gradient is cut to a norm before."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        state: Mapping[str, Tensor],
        optim: OptimConfig,
        grad_clip: float,
        total_steps: int,
    ) -> None:
        self.parameters = dict(parameters)
        self.state = {name: state_of(name, parameter, state) for name, parameter in self.parameters.items()}
        self.optim = optim
        self.grad_clip = grad_clip
        self.lr = optim.lr * lr_factor(int(state["updates"]), optim, total_steps)
        self.steps = 0

    @torch.no_grad()
    def step(self) -> float:
        """Gives the norm of the gradient before it is cut."""
        gradients = {name: x.grad for name, x in self.parameters.items() if x.grad is not None}
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        scale = min(1.0, self.grad_clip / (norm + 1e-6))
        beta, beta_sq = self.optim.betas
        for name, gradient in gradients.items():
            parameter, state = self.parameters[name], self.state[name]
            state["step"] += 1
            state["exp_avg"] = beta * state["exp_avg"] + (1 - beta) * scale * gradient
            state["exp_avg_sq"] = beta_sq * state["exp_avg_sq"] + (1 - beta_sq) * (scale * gradient).square()
            parameter.sub_(self.way(parameter, state))
        self.steps += 1
        return norm

    def way(self, parameter: Tensor, state: State) -> Tensor:
        """What a step takes from the parameter, with the state that it has by then."""
        beta, beta_sq = self.optim.betas
        mean = state["exp_avg"] / (1 - beta ** state["step"])
        deviation = (state["exp_avg_sq"] / (1 - beta_sq ** state["step"])).sqrt()
        way: Tensor = self.lr * (self.optim.weight_decay * parameter + mean / (deviation + EPS))
        return way


def state_of(name: str, parameter: Tensor, state: Mapping[str, Tensor]) -> State:
    """Of one parameter; zeros for one that was never updated."""
    none = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
    saved = {key: state.get(f"optimizer.state.{name}.{key}", zeros) for key, zeros in none.items()}
    return {key: value.detach().double().clone() for key, value in saved.items()}


def lr_factor(update: int, optim: OptimConfig, total: int) -> float:
    """Of the rate in update number `update`, from 0: it rises in a line, then stays or falls as a cosine does."""
    rise = optim.lr_warmup_steps if optim.lr_warmup_steps >= 0 else int(optim.lr_warmup_steps_ratio * total)
    if update < rise:
        return update / rise
    if optim.lr_scheduler_type == "constant":
        return 1.0
    way = min(1.0, (update - rise) / max(1, total - rise))
    height = max(0.0, (1 + math.cos(2 * math.pi * optim.num_cycles * way)) / 2)
    return optim.min_lr_ratio + (1 - optim.min_lr_ratio) * height


# --------------------------------------------------------------------------------------------- a run's own beside it


@torch.no_grad()
def applied(adam: AdamW, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Applied:
    """`adam` has done its steps from the save `before`; the run came from there to the save `after`."""
    names = list(adam.parameters)
    old, new = ({name: state_of(name, adam.parameters[name], save) for name in names} for save in (before, after))
    started = {name: before[f"model.{name}"].double() for name in names}
    (kept, taken, decay), gradients = _means(adam, old, new, started)
    squares = {name: _squares(adam, name, old[name], new[name]) for name in names}
    ways = {name: _way(adam, name, before, after, new[name]) for name in names}
    odd = plain_lora.strayed(before, after, adam.parameters) if any(map(plain_lora.is_factor, names)) else []
    return Applied(adam.steps, kept, adam.optim.betas[0] ** adam.steps, taken, decay, gradients, squares, ways, odd)


def _means(
    adam: AdamW, old: Mapping[str, State], new: Mapping[str, State], started: Mapping[str, Tensor]
) -> tuple[tuple[float, float, float], dict[str, float]]:
    """New mean = `kept` x old one + `taken` x what should have come to it + `decay` x parameter + a rest.

    As they should be where that explains the new mean; else as they explain the most of it (least squares). The rest is
    a share of what should have come.
    """
    beta = adam.optim.betas[0] ** adam.steps
    came = {name: adam.state[name]["exp_avg"] - beta * old[name]["exp_avg"] for name in old}
    whole = math.sqrt(sum(float(x.square().sum()) for x in came.values()))

    def rest(factors: tuple[float, float, float]) -> dict[str, float]:
        kept, taken, decay = factors
        found = {}
        for name, x in came.items():
            before = old[name]["exp_avg"]
            missed = new[name]["exp_avg"] - kept * before - taken * x - decay * started[name]
            slack = ROUNDING * float(before.norm())
            found[name] = max(0.0, float(missed.norm()) - slack) / max(float(x.norm()), FEW * whole, 1e-30)
        return found

    as_wanted = (beta, 1.0, 0.0)
    off = rest(as_wanted)
    if max(off.values()) < FEW:
        return as_wanted, off
    kept, taken, decay = _least_squares(
        [_flat({name: state["exp_avg"] for name, state in old.items()}), _flat(came), _flat(started)],
        _flat({name: state["exp_avg"] for name, state in new.items()}),
    )
    return (kept, taken, decay), rest((kept, taken, decay))


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def _least_squares(parts: list[Tensor], wanted: Tensor) -> list[float]:
    """The factors of the parts whose sum comes nearest to `wanted`."""
    sizes = [max(float(part.norm()), 1e-300) for part in parts]
    columns = torch.stack([part / size for part, size in zip(parts, sizes, strict=True)], 1)
    found = torch.linalg.lstsq(columns, wanted[:, None]).solution[:, 0].tolist()
    return [factor / size for factor, size in zip(found, sizes, strict=True)]


def _squares(adam: AdamW, name: str, old: State, new: State) -> float:
    wanted, was = adam.state[name]["exp_avg_sq"], old["exp_avg_sq"]
    missed = max(0.0, float((new["exp_avg_sq"] - wanted).norm()) - ROUNDING * float(was.norm()))
    return missed / max(float((wanted - was).norm()), 1e-30)


def _way(adam: AdamW, name: str, before: Mapping[str, Tensor], after: Mapping[str, Tensor], new: State) -> float:
    """Of one step by the run's own new state, so that nothing but the formula is compared; of several, by all of it."""
    started, ended = before[f"model.{name}"].double(), after[f"model.{name}"].double()
    wanted = started - adam.way(started, new) if adam.steps == 1 else adam.parameters[name].detach()
    missed = max(0.0, float((ended - wanted).norm()) - ROUNDING * float(started.norm()))
    rate = adam.lr * math.sqrt(started.numel())  # the way of a parameter whose gradients all have one sign
    return missed / max(float((wanted - started).norm()) + rate, 1e-30)
