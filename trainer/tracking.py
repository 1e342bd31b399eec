"""Where metrics go: console, JSON lines, wandb, tensorboard. Talk goes to stderr."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from rich.theme import Theme

from trainer import own_files
from trainer.apart import Apart
from trainer.config.schema import Config, TrainerConfig
from trainer.config.show import CAUTION, GOOD, NAME
from trainer.curve import sparkline
from trainer.errors import ConfigError, TrainerError
from trainer.records import Metrics
from trainer.wrapping import print_line

METRICS_FILE, TENSORBOARD_FOLDER = "metrics.jsonl", "tensorboard"  # below trainer.default_local_dir
WANDB_FINISH_S = "300"
SCORE = "critic/score/mean"
BAR_COLUMNS, SPARKS = 12, 16
BAR_COLOURS = {"download": GOOD, "elapsed": CAUTION, "remaining": NAME}  # of Rich's bar
# What one line on a terminal has room for: the metric, and its short name.
HEADLINE = {
    SCORE: "score",
    "actor/ppo_kl": "kl",
    "actor/entropy": "entropy",
    "actor/pg_loss": "pg_loss",
    "critic/vf_loss": "vf_loss",
    "actor/grad_norm": "grad",
    "response_length/mean": "length",
    "perf/throughput": "tokens/s",
    "timing_s/step": "seconds",
}


@contextmanager
def written(path: Path, keys: str = "trainer.default_local_dir, trainer.rollout_data_dir") -> Iterator[None]:
    """Raises TrainerError if the system refuses to write `path`, which `keys` decide."""
    try:
        yield
    except OSError as error:
        raise TrainerError(
            f"cannot write {path}: {error.strerror or error}",
            hint=f"free space, or write elsewhere: {keys}",
        ) from error


class Backend(Protocol):
    """One place that metrics go to."""

    def log(self, step: int, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class TellsPhases(Protocol):
    """A back-end for people."""

    def phase(self, text: str) -> None: ...


class Tracker:
    """All back-ends of `trainer.logger` together."""

    def __init__(self, backends: Sequence[Backend], console: Console | None = None) -> None:
        self.backends = tuple(backends)
        self.console = console or Console(stderr=True)

    def log(self, step: int, metrics: Metrics) -> None:
        for backend in self.backends:
            backend.log(step, metrics)

    def phase(self, text: str, expect: str | None = None) -> None:
        """What the run is at, when it is at no step; `expect` is noted before."""
        if expect is not None:
            self.note(expect)
        for backend in self.backends:
            if isinstance(backend, TellsPhases):
                backend.phase(text)

    def note(self, text: str) -> None:
        print_line(self.console, Text(f"note: {text}", style="dim"))

    def close(self) -> None:
        for backend in self.backends:
            backend.close()


def make_tracker(config: Config, total_steps: int) -> Tracker:
    """The back-ends that `trainer.logger` names. Raises ConfigError if one is not installed."""
    console = Console(stderr=True)
    root = Path(config.trainer.default_local_dir).expanduser()
    backends: list[Backend] = []
    # The console last: where another one can not be made, no display is left that has the terminal.
    for name in sorted(config.trainer.logger, key=lambda name: name == "console"):
        if name == "console":
            backends.append(console_log(config.trainer, console, total_steps, apart=True))
        elif name == "file":
            backends.append(JsonLines(root / METRICS_FILE))
        elif name == "wandb":
            backends.append(WandbLog(config))
        elif name == "tensorboard":
            backends.append(TensorboardLog(root / TENSORBOARD_FOLDER))
        else:
            raise ConfigError(f"trainer.logger knows no {name!r}", hint="choose from console, file, wandb, tensorboard")
    return Tracker(backends, console)


def console_log(trainer: TrainerConfig, console: Console, total_steps: int, *, apart: bool = False) -> Backend:
    """Off a terminal all metrics are shown, too, where no other logger keeps them.

    `apart`: the terminal of stderr is the display's own while it lasts.
    """
    shown = trainer.console_metrics
    if console.is_terminal:
        return TerminalLog(console, total_steps, whole=shown == "all", apart=Apart() if apart else None)
    alone = set(trainer.logger) == {"console"}
    return PlainLog(console, whole=alone if shown is None else shown == "all")


def is_headline(name: str) -> bool:
    return name in HEADLINE or name.startswith("val-core/")


class PlainLog:
    """One line per step, `step:3 - name:value - ...`, for logs and CI. The names are verl's, and so is the form."""

    def __init__(self, console: Console, *, whole: bool) -> None:
        """`whole`: all metrics, else the main ones."""
        self.file = console.file or sys.stderr
        self.whole = whole

    def log(self, step: int, metrics: Metrics) -> None:
        shown = (f"{name}:{value:.6g}" for name, value in metrics.items() if self.whole or is_headline(name))
        print(" - ".join([f"step:{step}", *shown]), file=self.file, flush=True)

    def phase(self, text: str) -> None:
        print(f"{text} ...", file=self.file, flush=True)

    def close(self) -> None:
        pass


class TerminalLog:
    """The main numbers of each step, above a progress bar; after them the others, if they are asked for.

    The bar says what the run is at before its first step, and draws the mean score of the steps that were.
    """

    def __init__(self, console: Console, total_steps: int, *, whole: bool, apart: Apart | None = None) -> None:
        self.whole = whole
        self.console, self.apart = console, apart
        self.scores: list[float] = []
        if apart is not None:
            console.file = apart.open()
        columns = (
            *(TextColumn("{task.description}"), BarColumn(BAR_COLUMNS), MofNCompleteColumn()),
            *(TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()),
            TextColumn("{task.fields[score]}", style=NAME),
        )
        console.push_theme(Theme({f"progress.{part}": colour for part, colour in BAR_COLOURS.items()}))
        self.progress = Progress(*columns, console=console, transient=True)
        self.bar = self.progress.add_task("starting", total=total_steps, score="")
        self.progress.start()

    def phase(self, text: str) -> None:
        self.progress.update(self.bar, description=text)

    def log(self, step: int, metrics: Metrics) -> None:
        shown = [f"{label} {metrics[name]:.4g}" for name, label in HEADLINE.items() if name in metrics]
        shown += [f"{name} {value:.4g}" for name, value in metrics.items() if name.startswith("val-core/")]
        shown += [f"{name} {value:.4g}" for name, value in metrics.items() if self.whole and not is_headline(name)]
        print_line(self.progress.console, Text(f"step {step}: " + "  ".join(shown)))
        self.scores += [metrics[SCORE]] if SCORE in metrics else []
        score = f"score {self.scores[-1]:.2f} {sparkline(self.scores, SPARKS)}" if self.scores else ""
        self.progress.update(self.bar, completed=step, description="step", score=score)

    def close(self) -> None:
        self.progress.stop()
        if self.apart is None:
            return
        self.console.file = None  # type: ignore[assignment]  # sys.stderr again
        if (log := self.apart.close()) is not None:
            print_line(self.console, Text(f"note: the stderr of Ray and other libraries is in {log}", style="dim"))


class JsonLines:
    """`metrics.jsonl` beside the checkpoints; a resumed run adds to it. Raises TrainerError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with written(path):
            path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, step: int, metrics: Metrics) -> None:
        told = {"step": step} | {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        with written(self.path):
            own_files.append(self.path, json.dumps(told) + "\n")

    def close(self) -> None:
        pass


class WandbLog:
    """Weights & Biases, by its own settings and environment variables."""

    def __init__(self, config: Config) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "trainer.logger names wandb, which is not installed",
                hint="pip install 'ray-devkit[tracking]', or take it out of trainer.logger",
            ) from error
        # Without a network it would wait for ever to send the rest, which `wandb sync` can do later.
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", WANDB_FINISH_S)
        try:
            self.run = wandb.init(
                project=config.trainer.project_name,
                name=config.trainer.experiment_name,
                config=dataclasses.asdict(config),
            )
        except wandb.errors.Error as error:
            raise ConfigError(
                f"trainer.logger names wandb, which cannot start: {str(error).strip().splitlines()[0]}",
                hint="log in with `wandb login`, set WANDB_MODE=offline, or take wandb out of trainer.logger",
            ) from error

    def log(self, step: int, metrics: Metrics) -> None:
        self.run.log(metrics, step=step)

    def close(self) -> None:
        self.run.finish()


class TensorboardLog:
    """Event files that `tensorboard --logdir` shows."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "trainer.logger names tensorboard, which is not installed",
                hint="pip install 'ray-devkit[tracking]', or take it out of trainer.logger",
            ) from error
        with written(folder):
            own_files.folder(folder)
        self.writer = SummaryWriter(str(folder))

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()
