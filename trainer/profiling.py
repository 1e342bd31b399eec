"""Profiles of chosen steps on chosen ranks: traces of the CPU and GPU, or snapshots of CUDA memory.

    FOLDER/step_3.rank_0.trace.json.gz      torch.profiler, for https://ui.perfetto.dev: phases are named ranges
    FOLDER/step_3.rank_0.memory.pickle      what lies where in CUDA memory and who took it, for pytorch.org/memory_viz
    FOLDER/step_3.failed.rank_0.memory.pickle   the same of a step in which this rank failed, as it does without memory

The driver's side is `Profiler`, a rank's is `Recording`. What a phase costs is what `timing_s/*` says of a step that is
not profiled: profiling itself takes time.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from trainer import own_files
from trainer.config.schema import ProfilerConfig
from trainer.errors import TrainerError
from trainer.interfaces import Clock

MEMORY_EVENTS = 100_000  # that a snapshot keeps: the newest, as verl's `trace_alloc_max_entries`


class Recording:
    """One rank's profile, from its construction to `stop`."""

    def __init__(self, tool: str, device: torch.device) -> None:
        """`tool` is "torch" or "torch_memory"; the latter needs CUDA."""
        self.tool = tool
        self._trace: Any = None
        if tool == "torch_memory":
            torch.cuda.memory._record_memory_history(max_entries=MEMORY_EVENTS)
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._trace = torch.profiler.profile(activities=activities, record_shapes=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Profiler clears events")  # torch 2.11: there is one cycle only
            self._trace.start()

    def stop(self, stem: Path) -> str:
        """Writes the file; gives its name. Raises TrainerError if the system refuses."""
        path = stem.with_name(stem.name + (".trace.json.gz" if self._trace else ".memory.pickle"))
        if self._trace:
            self._trace.stop()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with own_files.beside(path) as file:
                if self._trace:
                    self._trace.export_chrome_trace(str(file))
                else:
                    torch.cuda.memory._dump_snapshot(str(file))
            if not self._trace:
                torch.cuda.memory._record_memory_history(enabled=None)
        except (OSError, RuntimeError) as error:
            raise TrainerError(f"cannot write {path}: {error}", hint="set global_profiler.save_path") from error
        return str(path)


class Rescued:
    """Around a phase of a rank: one that fails leaves its memory snapshot, because nobody will come to stop it."""

    def __init__(self, recording: Recording | None, stem: str) -> None:
        """`stem` is that of the file. A trace of a failed phase says nothing, and is not written."""
        self._recording = recording if recording is not None and recording.tool == "torch_memory" else None
        self._stem = stem

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or self._recording is None:
            return
        try:
            said = f"memory snapshot of the failure: {self._recording.stop(Path(self._stem))}"
        except TrainerError as refused:  # what went wrong before it matters more
            said = f"no memory snapshot of the failure: {refused.message}"
        logging.getLogger("trainer").warning(said)


def start(config: ProfilerConfig, rank: int, device: torch.device) -> Recording | None:
    """This rank's profile, if it is to have one and can."""
    chosen = config.tool is not None and (config.all_ranks or rank in config.ranks)
    if not chosen or (config.tool == "torch_memory" and device.type != "cuda"):
        return None
    return Recording(str(config.tool), device)


def spans(steps: Sequence[int] | None, continuous: bool) -> list[range]:
    """What is profiled together: each step by itself, or neighbours in one.

    >>> spans([5, 2, 1], continuous=True), spans([1, 2], continuous=False)
    ([range(1, 3), range(5, 6)], [range(1, 2), range(2, 3)])
    """
    found: list[range] = []
    for step in sorted(set(steps or ())):
        if continuous and found and found[-1].stop == step:
            found[-1] = range(found[-1].start, step + 1)
        else:
            found.append(range(step, step + 1))
    return found


class Profiler:
    """Starts and stops the ranks' profiles around the driver's steps."""

    def __init__(
        self, config: ProfilerConfig, everywhere: Callable[..., list[Any]], note: Callable[[str], None]
    ) -> None:
        """`everywhere(phase, *args)` asks all ranks; `note` tells the user where the files are."""
        self._config = config
        self._everywhere = everywhere
        self._note = note
        self._spans = spans(config.steps, config.profile_continuous_steps) if config.tool else []
        self._folder = Path(config.save_path).expanduser().resolve()
        self._begun: int | None = None  # the first step of the profile that runs

    @contextmanager
    def step(self, number: int, clock: Clock = nullcontext) -> Iterator[None]:
        """Around one step. Of a step that fails, see `Rescued`."""
        span = next((span for span in self._spans if number in span), None)
        if span is not None and self._begun is None:
            self._begun = number
            with clock("start_profile"):
                self._everywhere("start_profile", str(self._folder / f"step_{number}.failed"))
        yield
        if span is not None and number == span[-1]:
            with clock("stop_profile"):
                self._stop(number)

    def close(self, last: int) -> None:
        """After the last step: what still runs ends here."""
        if self._begun is not None:
            self._stop(last)

    def _stop(self, last: int) -> None:
        first, self._begun = self._begun, None
        name = f"step_{last}" if first == last else f"steps_{first}-{last}"
        written = [path for path in self._everywhere("stop_profile", str(self._folder / name)) if path]
        if written:
            self._note(f"profile of {name.replace('_', ' ')}: {', '.join(written)}")
        elif self._config.tool == "torch_memory":
            self._note(f"no memory snapshot of {name.replace('_', ' ')}: the chosen ranks compute on a CPU")
