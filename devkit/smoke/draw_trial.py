"""The trial of the engines' draws, from the first request to what is judged: `ask_engines.py`, `plain_draws.py`."""

from __future__ import annotations

from dataclasses import asdict

from devkit.errors import DevkitError
from devkit.smoke import ask_engines
from devkit.smoke.checks.draws import Draws, heard
from devkit.smoke.plain_draws import Choice, Request
from devkit.smoke.warm_process import WarmProcess
from trainer.config.schema import Config
from trainer.group import WorkerGroup
from trainer.records import Rollout


class DrawTrial:
    """Once for a run. A model that the warm process cannot compute is passed over."""

    def __init__(self, warm: WarmProcess, model: str, seed: int) -> None:
        """`model`: the folder of the weights that the run begins with."""
        self._warm = warm
        self._model = model
        self._seed = seed
        self._requests: list[Request] = []
        self._why = ""

    def begin(self, workers: WorkerGroup) -> None:
        """Asks the engines, before anything is trained."""
        self._warm.tell("choose", model=self._model, seed=self._seed)
        try:
            choice = Choice(**self._warm.answer())
        except DevkitError as error:
            self._why = f"the expected draws could not be computed: {error.message}"
            return
        self._requests = ask_engines.ask(workers, choice, self._seed)

    def end(self, first: Rollout, config: Config) -> Draws:
        """With `first`, what the run drew in its first step."""
        engine = config.actor_rollout_ref.rollout.name
        if self._why:
            return Draws({}, {}, {}, engine, self._why)
        requests = [*self._requests, ask_engines.of_first_step(first, config)]
        told = [asdict(request) for request in requests]
        self._warm.tell("judge", model=self._model, requests=told, pairs=ask_engines.ALIKE)
        return heard(requests, self._warm.answer(), engine)
