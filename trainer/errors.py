"""Every error that the trainer raises on purpose, in one tree.

    TrainerError                 exit code 1: the run failed
    ├── ConfigError              2: a wrong key, value or command; ConfigErrors: several at once
    ├── DataError                2: a data file, column or prompt that cannot be used
    ├── ModelError               2: a model folder that cannot be used
    ├── RewardError              1: a reward function raised; names the row
    ├── EpisodeError             1: too many environments raised, hung or died; names the first of them
    ├── RetrieverError           1: a retriever cannot be used; names its URL
    │   ├── RetrieverDown        1: nothing answers there
    │   ├── RetrieverSlow        1: no answer in time
    │   └── RetrieverWrong       1: a status, or an answer, that is of no use
    ├── NotFinite                1: a loss, or what it is made of, is NaN or infinite; names row and key
    ├── BatchError               1: a batch too small to compute from; a ValueError too
    ├── CheckpointError          1: a checkpoint could not be written or read
    ├── FolderInUse              1: another run writes to the same folder
    ├── CapsuleError             1: a capsule could not be written, read or replayed
    ├── DriftError               1: the engine's log-probs are too far from the trainer's
    ├── EngineError              1: a rollout engine failed; WeightMismatch: its weights are not the trainer's
    ├── WorkerDied               1: a worker process ended; names the rank
    │   └── NodeLost             1: a whole node was lost; names the node and its ranks
    ├── ClusterError             3: no Ray cluster to be reached
    ├── DeadlineError            4: a wait ended; says what is missing
    └── Interrupted            130: by Ctrl-C or SIGTERM

Each carries one `hint`: what the user can do about it. `main_ppo` prints one `error:` line and one `hint:` line and
leaves with `exit_code`; nothing below it catches them.
"""

from __future__ import annotations


class TrainerError(Exception):
    """A failure with a message and a hint, each of one line.

    >>> str(TrainerError("disk full", hint="free some space"))
    'disk full'
    """  # a hint has no default: none of these can be made without one

    exit_code = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Ray pickles exceptions; a keyword-only argument needs help to survive it. What is kept in an error, as by the
        # debugger which calls it after its cause, goes with it.
        return (_rebuild, (type(self), self.message, self.hint), self.__dict__)


def _rebuild(kind: type[TrainerError], message: str, hint: str) -> TrainerError:
    return kind(message, hint=hint)


class ConfigError(TrainerError):
    """A key, value or command that cannot be right."""

    exit_code = 2


class DataError(TrainerError):
    """A data file, column, row or prompt that cannot be used."""

    exit_code = 2


class ModelError(TrainerError):
    """A model folder or hub id that cannot be used."""

    exit_code = 2


class RewardError(TrainerError):
    """A reward function raised, or gave something that is not a number."""


class EpisodeError(TrainerError):
    """More trajectories failed than `agent.min_kept` allows, or none can be begun."""


class RetrieverError(TrainerError):
    """A retriever cannot be used; the message names its URL."""


class RetrieverDown(RetrieverError):
    """Nothing answers at its URL, or the connection breaks before the answer is whole."""


class RetrieverSlow(RetrieverError):
    """It gave no answer in time."""


class RetrieverWrong(RetrieverError):
    """It answered with a status that is none of success, or with something else than passages for each query."""


class NotFinite(TrainerError):
    """A loss, or what it is computed from, is NaN or infinite in fp32."""


class CheckpointError(TrainerError):
    """A checkpoint could not be written or read."""


class FolderInUse(TrainerError):
    """Another run writes to a folder of this one's; the message names its process."""


class CapsuleError(TrainerError):
    """A step's capsule could not be written, read or replayed."""


class DriftError(TrainerError):
    """The engine's log-probs are further from the trainer's than `trainer.max_rollout_drift` allows."""


class EngineError(TrainerError):
    """A rollout engine did not start, refused a call, or kept dying."""


class WeightMismatch(EngineError):
    """An engine's weights are not the trainer's; the message names the tensor and the rank."""


class WorkerDied(TrainerError):
    """A worker process ended before its work was done; `trace` is what Ray knows of its end."""

    def __init__(self, message: str, *, hint: str, trace: str = "") -> None:
        super().__init__(message, hint=hint)
        self.trace = trace


class NodeLost(WorkerDied):
    """A node of the cluster is gone, and with it the ranks that were on it."""


class ClusterError(TrainerError):
    """No Ray cluster could be reached or started."""

    exit_code = 3


class DeadlineError(TrainerError):
    """A wait came to its end; the message says what was still missing."""

    exit_code = 4


class Interrupted(TrainerError):
    """Somebody ended the run, which was in order."""

    exit_code = 130
    is_told = False  # its two lines are on stderr


class BatchError(TrainerError, ValueError):
    """A batch from which nothing can be computed, such as one with fewer than two response tokens."""
