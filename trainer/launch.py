"""A run on Ray: cluster, workers, data, loop, and everything given back at the end."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from types import FrameType
from typing import NoReturn

import ray

from trainer.cluster import WorkerPool, start_ray
from trainer.config.schema import Config
from trainer.records import Metrics
from trainer.requirements import require_engines, require_folders, require_splits
from trainer.run import Observer, read_data, total_steps, train
from trainer.tracking import make_tracker


def run_on_ray(config: Config, observer: Observer | None = None) -> Metrics:
    """The whole run; gives the last metrics. Raises the TrainerError that ended it."""
    require_engines(config)
    leave_on_sigterm()
    data = read_data(config)  # what is wrong with data and loggers shows before Ray starts
    require_splits(config)
    require_folders(config)
    with closing(make_tracker(config, total_steps(config, data.train))) as tracker:
        for note in data.notes:
            tracker.note(note)
        try:
            start_ray(config)  # within the `try`: Ctrl-C may come while Ray is half up
            leave_on_sigterm()  # again: Ray's own handler aborts the process
            with closing(WorkerPool(config, note=tracker.note)) as pool:
                pool.connect()
                return train(config, pool, data, tracker, observer)
        finally:
            ray.shutdown()


def leave_on_sigterm() -> None:
    """`ray job stop`, Slurm and Kubernetes send it: leave as with Ctrl-C. Only a main thread can ask for that."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
