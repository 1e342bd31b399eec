"""A run on Ray: cluster, workers, data, loop, and everything given back at the end."""

from __future__ import annotations

from contextlib import closing

import ray

from trainer import resuming
from trainer.cluster import WorkerPool, start_ray
from trainer.config.schema import Config
from trainer.data.reading import read_data, total_steps
from trainer.leaving import Leaving
from trainer.records import Metrics
from trainer.requirements import require_engines, require_folders, require_splits
from trainer.retrieval.nodes import retrievers
from trainer.run import Observer, train
from trainer.runlock import require_free
from trainer.tracking import Tracker, make_tracker


def run_on_ray(config: Config, observer: Observer | None = None) -> Metrics:
    """The whole run; gives the last metrics. Raises the TrainerError that ended it."""
    require_engines(config)
    leaving = Leaving(config.trainer.grace_period)
    leaving.listen()
    data = read_data(config)  # what is wrong with data and loggers shows before Ray starts
    require_splits(config)
    require_folders(config)
    require_free(config.trainer)
    steps = total_steps(config, data.train)
    if not config.trainer.val_only and (step := resuming.done(config.trainer, steps)) is not None:
        Tracker(()).note(resuming.nothing_left(step, steps))
        return {}
    with closing(make_tracker(config, steps)) as tracker:
        leaving.note = tracker.note
        for note in data.notes:
            tracker.note(note)
        try:
            tracker.phase("starting Ray")
            start_ray(config)  # within the `try`: Ctrl-C may come while Ray is half up
            leaving.listen()  # again: Ray's own handler aborts the process
            tracker.phase(f"placing {config.world_size} worker{'s' * (config.world_size > 1)}")
            with closing(WorkerPool(config, note=tracker.note)) as pool:
                pool.connect()
                with retrievers(config, pool, tracker.note):
                    return train(config, pool, data, tracker, observer, leaving)
        finally:
            ray.shutdown()
