"""What a run needs of this machine and of its models, looked at before Ray starts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

from transformers import AutoConfig

from trainer.config.outputs import sample_folders
from trainer.config.problems import ConfigErrors
from trainer.config.schema import Config
from trainer.config.splits import Shape, shape_of, split_problems
from trainer.learner.megatron.available import require_megatron
from trainer.model_path import UNREADABLE
from trainer.retrieval.index import Source
from trainer.rollout.versions import require_version
from trainer.tracking import written


def require_engines(config: Config) -> None:
    """Raises ConfigError if the package of an engine, or of `retriever.serve`, is missing or does not fit."""
    name = config.actor_rollout_ref.rollout.name
    if name != "hf":
        require_version(name)
    if config.uses_megatron:
        require_megatron()
    if config.agent.env is not None and config.retriever.serve is not None:
        Source(config.retriever.serve, config.retriever.encoder, config.retriever.encoder_kind).require()


def require_splits(config: Config) -> None:
    """Raises ConfigErrors if a model cannot be split over so many ranks. Of local folders `--check` has said it."""
    if config.ranks_per_engine == 1 and not config.uses_megatron:
        return
    actor, critic = (
        _shape_on_hub(model.path, model.trust_remote_code)
        for model in (config.actor_rollout_ref.model, config.critic.model)
    )
    if problems := [*split_problems(config, actor, critic)]:
        raise ConfigErrors(problems)


def require_folders(config: Config) -> None:
    """Raises TrainerError if samples or capsules can't be written to their folders, which it makes."""
    for key, name in sample_folders(config.trainer).items():
        path = Path(name).expanduser()
        with written(path, key):
            path.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=path).close()


def _shape_on_hub(path: str, trust_remote_code: bool) -> Shape | None:
    """None for a local folder, and for what cannot be read: the ranks will say why."""
    if Path(path).expanduser().is_dir():
        return None
    try:
        return shape_of(AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code).to_dict())
    except UNREADABLE:
        return None
