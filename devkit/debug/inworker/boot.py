"""How the agent gets into a process: the driver's hook, a worker's, and that of a worker's children.

driver    `devkit run` puts the bundle's folder on PYTHONPATH; its `sitecustomize` calls `start_in_process`, and Ray,
          told by RAY_RUNTIME_ENV_HOOK, calls `runtime_env_hook`, which adds the workers' hook (`ship.py`) to the job
worker    Ray calls the hook before the first task
child     of a worker, forked or spawned: it inherits the folder, or the agent itself; a forked one, also of a driver,
          starts nothing before it is asked (`forked.py`), a spawned one nothing before it has lived for a while
          (`later.py`)
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import alone, private, threads
from .agent import Agent, current, launch
from .card import Card
from .core import asking, watch
from .identity import has_job
from .later import CHILD_OF
from .settings import VARIABLE, Settings, given, in_environment
from .words import say

SETTINGS = VARIABLE
ANNOUNCE = "DEVKIT_ANNOUNCE"  # where to write which cluster the driver is in
BEGUN = ".begun"  # a file beside that one: the program has called `ray.init`, and where it is then, without the hub
USER_ENV_HOOK = "DEVKIT_USER_ENV_HOOK"  # the RAY_RUNTIME_ENV_HOOK that was set before ours
UV = "DEVKIT_UV"  # whether Ray's own hook for `uv run` was on
WAIT = "DEVKIT_WAIT"  # a driver's breakpoint() waits without a terminal
IN_CLUSTER = "DEVKIT_IN_CLUSTER"  # set for all processes of a cluster that `devkit debug-cluster` started
SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray's own, in the driver of a job that was submitted
PLACE = "DEVKIT_HUB"  # the hub's place, for processes without Ray
LOOK_SECONDS = 0.05
START_SECONDS = 600.0  # for the hub, on a machine that has no time for it
CREATE_AFTER_SECONDS = (0.3, 1.0)  # a worker makes the hub itself when the driver could not; not all at once

Document = dict[str, Any]


def settings_to_json(settings: Settings) -> Document:
    return {**vars(settings), "breakpoints": [each.to_json() for each in settings.breakpoints]}


def settings_from_json(document: Document) -> Settings:
    points = _breakpoints(document)
    known = {name: value for name, value in document.items() if name in Settings.__dataclass_fields__}
    return Settings(**{**known, "breakpoints": points})


def _breakpoints(document: Document) -> tuple[Any, ...]:
    given = document.get("breakpoints", ())
    if not given:
        return ()  # and nothing to load for it
    from .records import Breakpoint

    return tuple(Breakpoint.from_json(each) for each in given)


# ---- in a worker


def start_in_worker(document: Document) -> None:
    """Called by Ray, through `ship.py`, before the worker runs its first task."""
    import time

    from . import hooks

    began = time.perf_counter()
    settings = settings_from_json(document)
    running = current()
    if running is not None:  # it came with the cluster; the job has wishes of its own
        running.change(settings)
        return
    place = _published()
    posted = _breakpoints(place or {})
    known = {each.id for each in settings.breakpoints}
    fresh = tuple(each for each in posted if each.id not in known)
    settings = Settings(**{**vars(settings), "breakpoints": settings.breakpoints + fresh})
    agent = launch(settings, _WorkerLocator())
    hooks.install(agent, driver=False)
    _cover_children(agent, document)
    agent.start_seconds = time.perf_counter() - began


def _published() -> Document | None:
    from .hub_place import published

    try:
        return published()
    except Exception:  # noqa: BLE001 - a GCS that is slow now is asked again by the agent's own thread
        return None


class _WorkerLocator:
    """Finds the hub. Makes it when nobody did: the driver may be a Ray client, or an older devkit's."""

    def __init__(self) -> None:
        import random
        import time

        self._clock = time.monotonic
        self._create_at = self._clock() + random.uniform(*CREATE_AFTER_SECONDS)
        self._made: Any = None

    def __call__(self) -> Document | None:
        place = _published()
        if place is None and self._made is None and self._clock() > self._create_at and has_job():
            from .hub_actor import create

            with asking() as is_open:
                self._made = create() if is_open else None
        if place is not None:
            os.environ[PLACE] = json.dumps({name: place[name] for name in ("hub_id", "host", "port")})
        return place


# ---- in the driver


def start_in_process() -> None:
    """Called by `sitecustomize` in every Python that inherits the environment of `devkit run` or of a worker."""
    from .imports import on_import

    is_worker = "default_worker.py" in " ".join(sys.orig_argv)
    if os.environ.get(SUBMITTED) and not is_worker:  # a driver: it is no child of Ray's actor that has started it
        for name in (CHILD_OF, IN_CLUSTER):
            os.environ.pop(name, None)
    if os.environ.get(CHILD_OF):
        start_in_child()
    elif is_worker:
        if os.environ.get(IN_CLUSTER):
            on_import("ray._private.worker", _follow_connect)
    elif _is_program() and not os.environ.get(IN_CLUSTER):
        on_import("ray._private.worker", _follow_init)
        _watch_alone()


def _watch_alone() -> None:
    """What ends the program before it has a Ray is kept where `devkit run` finds it."""
    path = os.environ.get(ANNOUNCE)
    with suppress(KeyError, OSError, ValueError):  # of another devkit's variables
        if path and given(os.environ)["post_mortem"] != "off":
            alone.watch(Path(path).with_suffix(alone.SUFFIX))


def _follow_connect(module: Any) -> None:
    """In a worker of `devkit debug-cluster`: the agent starts as soon as Ray is connected, before the first task."""
    connect = module.connect

    def connect_and_start(*arguments: Any, **options: Any) -> Any:
        result = connect(*arguments, **options)
        if module.global_worker.mode == module.WORKER_MODE:
            try:
                start_in_worker(given(os.environ))
            except Exception as error:  # noqa: BLE001 - the worker must start without us; its log tells
                say(f"the debugger could not start: {type(error).__name__}: {error}")
        return result

    module.connect = connect_and_start


def _is_program() -> bool:
    """Whether this may be the user's driver, and not one of Ray's own processes or a worker."""
    command = " ".join(sys.orig_argv)
    return "default_worker.py" not in command and "/ray/dashboard/" not in command and "/ray/_private/" not in command


def _follow_init(module: Any) -> None:
    module._post_init_hooks.append(_connected)


def note_ray(joined: Document | None = None) -> None:
    """Tells `devkit run` that its program has come to `ray.init`, whatever becomes of that; then what it has `joined`:
    a program that fails at once has ended before there is a hub to announce.
    """
    if path := os.environ.get(ANNOUNCE):
        with suppress(OSError):
            private.write(Path(path).with_suffix(BEGUN), json.dumps(joined) if joined else "")


def _connected() -> None:
    """The driver has called `ray.init`, and is connected."""
    note_ray()
    try:
        worker = sys.modules["ray._private.worker"]
        if worker.global_worker.mode != worker.SCRIPT_MODE:
            return
        from . import hooks
        from .hub_actor import create

        watch(worker)
        note_ray(_joined(worker))
        settings = settings_from_json(given(os.environ))
        hub = create()
        if current() is None:
            agent = launch(settings, _published)
            hooks.install(agent, driver=True)
            _prepare_forks(agent)
        _announce(worker, hub)
    except Exception as error:  # noqa: BLE001 - the user's `ray.init` must succeed without us; they are told
        say(f"the debugger could not start in the driver: {type(error).__name__}: {error}")


def _joined(worker: Any) -> Document:
    info = worker._global_node.address_info
    return {
        "gcs_address": info["gcs_address"],
        "dashboard_url": info.get("webui_url", ""),
        "job_id": worker.global_worker.current_job_id.hex(),
        "logs": worker._global_node.get_logs_dir_path(),
    }


def _announce(worker: Any, hub: Any) -> None:
    """Tells `devkit run`, which waits for it, where the cluster is, once the hub answers there."""
    path = os.environ.get(ANNOUNCE)
    if not path:
        return
    document = _joined(worker)

    def tell() -> None:
        from .auth import cluster_token, is_made_up

        with suppress(Exception):  # the program may have ended: then there is nobody to tell
            place, token = _place_of(hub), cluster_token()
            document["hub"] = {name: place[name] for name in ("hub_id", "host", "port", "node_id")}
            document["auth"] = "token" if token else "disabled"
            if is_made_up(token):  # nothing else of this user could reach the cluster
                document["token"] = token
            private.write(Path(path), json.dumps(document))

    threads.start(tell, "devkit-announce")


_kept: list[Any] = []  # references to what Ray has: one that is let go while Ray ends makes its core end the process


def _place_of(hub: Any) -> Document:
    """Where the hub listens, once it does. Raises when it does not come up in time, or Ray ends before."""
    import time

    import ray

    _kept.append(hub)
    asked: list[Any] = []
    _kept.append(asked)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with asking() as is_open:
            if not is_open:
                break
            if not asked:
                asked.append(hub.place.remote())
            if ray.wait(asked, timeout=0)[0]:
                place: Document = ray.get(asked.pop())
                return place
        time.sleep(LOOK_SECONDS)
    raise TimeoutError("the hub did not come up")


def runtime_env_hook(runtime_env: Document | None) -> Document:
    """What RAY_RUNTIME_ENV_HOOK names: adds the agent to whatever the program asks for."""
    import ray.cloudpickle

    from . import hub_actor, ship

    note_ray()
    environment = _with_other_hooks(dict(runtime_env or {}))
    ray.cloudpickle.register_pickle_by_value(ship)
    settings = given(os.environ)
    folder = Path(__file__).resolve().parent.parent
    bundle = (folder / "bundle.zip").read_bytes()
    user_hook = environment.get("worker_process_setup_hook")
    hub_actor.spares_hook = user_hook is not None
    environment["worker_process_setup_hook"] = ship.make_hook(bundle, folder.name, settings, user_hook)
    return environment


def _with_other_hooks(environment: Document) -> Document:
    """A hook that the user had set, and Ray's own for `uv run`, which Ray would prefer to ours, are called first."""
    from ray._private.runtime_env.uv_runtime_env_hook import _get_uv_run_cmdline, hook

    if _get_uv_run_cmdline() and os.environ.get(UV, "1") == "1":
        environment = hook(environment)
    users = os.environ.get(USER_ENV_HOOK)
    if users:
        from ray._common.utils import load_class

        environment = load_class(users)(environment)
    return dict(environment or {})


# ---- in children of a worker


def _cover_children(agent: Agent, document: Document) -> None:
    """Forked children start an agent of their own; spawned ones find our `sitecustomize`."""
    from .identity import PARENT, worker_id

    folder = Path(__file__).resolve().parent.parent
    os.environ[CHILD_OF] = f"{os.getpid()}:{worker_id()}"
    with suppress(OSError):  # no file is to be had: children go without a name
        agent.card = Card()
        agent.card.write(agent.identity.to_json())
        os.environ[PARENT] = agent.card.path
    os.environ[SETTINGS] = in_environment(document)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder / "site"), before)))
    os.register_at_fork(after_in_child=lambda: agent.restart_in_child(_from_environment))
    _prepare_forks(agent)


def _prepare_forks(agent: Agent) -> None:
    from . import forked

    def facts() -> Document:
        from .progress import facts

        return facts(agent)

    forked.prepare(facts)


def start_in_child() -> None:
    """In a process that a worker spawned."""
    owner = os.environ.get(CHILD_OF, "")
    if not owner or owner.split(":")[0] == str(os.getpid()) or not os.environ.get(SETTINGS):
        return
    from . import hooks

    agent = launch(settings_from_json(given(os.environ)), _from_environment)
    hooks.install(agent, driver=False)
    _prepare_forks(agent)


def _from_environment() -> Document | None:
    value = os.environ.get(PLACE)
    return json.loads(value) if value else None
