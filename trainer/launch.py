"""A run on Ray: cluster, workers, data, loop, and everything given back at the end."""

from __future__ import annotations

import ray

from trainer.cluster import WorkerPool, start_ray
from trainer.config.schema import Config
from trainer.records import Metrics
from trainer.run import Observer, read_data, require_engine, total_steps, train
from trainer.tracking import make_tracker


def run_on_ray(config: Config, observer: Observer | None = None) -> Metrics:
    """The whole run; gives the last metrics. Raises the TrainerError that ended it."""
    require_engine(config)
    start_ray(config)
    try:
        pool = WorkerPool(config)
        try:
            data = read_data(config)  # while the workers come up
            tracker = make_tracker(config, total_steps(config, data.train))
            try:
                for note in data.notes:
                    tracker.note(note)
                pool.connect()
                return train(config, pool, data, tracker, observer)
            finally:
                tracker.close()
        finally:
            pool.close()
    finally:
        ray.shutdown()
