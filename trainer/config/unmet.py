"""What a command may ask for that changes what is learned, and that this trainer does not do.

Such a key is no note among twenty: each `Unmet` of a command becomes one `warning:` line, the last of `--check` and the
first of a run. Whatever only costs time or memory, or says where something is written, has its place in `upstream.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainer.config.overrides import format_value

_A, _O = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_OFF = (False, None)
_MULTI_TURN = f"{_O}.multi_turn"


@dataclass(frozen=True, eq=False)
class Unmet:
    """`keys` ask for it, each unless it has one of the values beside it; none does under a value of `off`."""

    asked: str
    instead: str
    why: str  # of keys that ask for nothing as they stand: "KEY has no effect: WHY"
    keys: Mapping[str, tuple[Any, ...]]
    off: Mapping[str, tuple[Any, ...]]

    def asking(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the keys `given` that ask for it.

        >>> RERANKER.asking({"reranker.topk": 4, "trainer.nnodes": 2})
        {'reranker.topk': 4}
        >>> RERANKER.asking({"reranker.topk": 4, "do_search": False})
        {}
        """
        if any(_is_among(given[key], values) for key, values in self.off.items() if key in given):
            return {}
        held = {key: holding(key, self.keys) for key in given}
        return {key: given[key] for key, name in held.items() if name and not _is_among(given[key], self.keys[name])}

    def line(self, asking: Mapping[str, Any]) -> str:
        """What to say of it.

        >>> IMAGES.line({"data.image_key": "images"}).partition(",")[0]
        'data.image_key=images asks for images or videos in the prompts'
        """
        words = ", ".join(f"{key}={format_value(value)}" for key, value in asking.items())
        verb = "asks" if len(asking) == 1 else "ask"
        return f"{words} {verb} for {self.asked}, which this trainer does not have: {self.instead}"


def _is_among(value: Any, values: Iterable[Any]) -> bool:
    """0 is not False; a list with all that is in a set is that set."""
    given = frozenset(map(str, value)) if isinstance(value, list) else None
    return any(
        given is not None and other <= given
        if isinstance(other, frozenset)
        else value == other and isinstance(value, bool) == isinstance(other, bool)
        for other in values
    )


def holding(key: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is `key`, or a subtree `section.*` that holds it.

    >>> holding("reranker.topk", ["max_turns", "reranker.*"])
    'reranker.*'
    """
    return next((name for name in names if name == key or (name.endswith(".*") and key.startswith(name[:-1]))), None)


RERANKER = Unmet(
    asked="a reranker between the retriever and the model",
    instead="passages come in the order in which the retriever at retriever.url gives them",
    why="nothing is searched",
    keys={"reranker.*": (None,)},
    off={"do_search": (False,)},
)
INTERACTIONS = Unmet(
    asked="conversations with verl's interactions or callbacks",
    instead="tools answer with multi_turn.enable=True, and an environment with agent.env",
    why="conversations are with tools or an environment",
    keys={
        f"{_MULTI_TURN}.interaction_config_path": (None,),
        f"{_MULTI_TURN}.completion_callback": (None,),
        f"{_MULTI_TURN}.num_repeat_rollouts": (None,),
    },
    off={f"{_MULTI_TURN}.enable": (False,)},
)
POLICY_LOSS = Unmet(
    asked="another policy loss",
    instead="the loss is PPO's clipped one",
    why="that policy loss is not in use",
    keys={  # beside verl's defaults, which a copied command may spell out
        f"{_A}.policy_loss.clip_cov_ratio": (0.0002,),
        f"{_A}.policy_loss.clip_cov_lb": (1.0,),
        f"{_A}.policy_loss.clip_cov_ub": (5.0,),
        f"{_A}.policy_loss.kl_cov_ratio": (0.0002,),
        f"{_A}.policy_loss.ppo_kl_coef": (0.1,),
        f"{_A}.tau_pos": (1.0,),
        f"{_A}.tau_neg": (1.05,),
    },
    off={f"{_A}.policy_loss.loss_mode": ("vanilla",)},
)


def _overlong(section: str, *more: str) -> Unmet:
    names = {"enable": _OFF, "len": (None, 0), "penalty_factor": (None, 0, 0.0), "log": (True, *_OFF)}
    return Unmet(
        asked="a penalty on long responses",
        instead="the score of a response is what the reward function gives",
        why="the feature is off",
        keys={f"{section}.{name}": neutral for name, neutral in names.items()} | dict.fromkeys(more, (None,)),
        off={f"{section}.enable": _OFF},
    )


OVERLONG = (  # DAPO's, where its different versions have it
    _overlong("reward_model.overlong_buffer"),
    *(
        _overlong(f"{part}.reward_kwargs.overlong_buffer_cfg", f"{part}.reward_kwargs.max_resp_len")
        for part in ("reward_model", "reward")
    ),
)
IMAGES = Unmet(
    asked="images or videos in the prompts",
    instead="models read the text alone",
    why="models are text only",
    keys={"data.image_key": (None,), "data.video_key": (None,)},
    off={},
)
_SAMPLED_FROM: Mapping[str, tuple[Any, ...]] = {  # of engine_kwargs
    "quantization": (None,),
    "kv_cache_dtype": (None, "auto"),
    "dtype": (None, "auto"),
    "hf_overrides": (None, {}),
    "rope_scaling": (None, {}),
    "json_model_override_args": (None, "{}"),
    "logits_processors": (None, []),
}
ENGINE = Unmet(
    asked="responses from a quantized model, or from another one than the actor",
    instead="the engine samples from the actor's weights in the actor's dtype",
    why="the engine has the actor's dtype and gets its weights from the actor",
    keys={
        f"{_O}.engine_kwargs.{engine}.{name}": neutral
        for engine in ("sglang", "vllm")
        for name, neutral in _SAMPLED_FROM.items()
    },
    off={},
)
WEIGHTS_ALONE = Unmet(
    asked="a resumed run with a new optimizer",
    instead="it continues with all that its checkpoint holds",
    why="a checkpoint holds actor and critic, and all of it is loaded",
    keys={
        f"{role}.checkpoint.load_contents": (
            None,
            frozenset({"model", "optimizer", "extra"}),
            "${.save_contents}",  # verl's default
            f"${{{role}.checkpoint.save_contents}}",
        )
        for role in (_A, "critic")
    },
    off={"trainer.resume_mode": ("disable",)},
)
TABLE: tuple[Unmet, ...] = (RERANKER, INTERACTIONS, POLICY_LOSS, *OVERLONG, IMAGES, ENGINE, WEIGHTS_ALONE)


@cache
def names() -> Mapping[str, Unmet]:
    """What each key, and each subtree `section.*`, belongs to."""
    return {name: unmet for unmet in TABLE for name in unmet.keys}
