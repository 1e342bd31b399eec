"""What each limit of `timeouts.TABLE` is in a process of its own, read where the library reads it: limits.py WHEN

`before`: the libraries' modules are loaded before devkit's hook; `after`: after it. `never`: without it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

sys.path[:0] = [str(Path(__file__).resolve().parents[3])]

from tests.debug import standin  # noqa: E402

standin.install()

from devkit.debug.inworker import timeouts  # noqa: E402

# What a program gives where it may give a limit.
GIVEN = 5

MODULES = (
    "ray.dag",
    "ray.dag.compiled_dag_node",
    "ray.experimental.compiled_dag_ref",
    "ray._private.ray_constants",
    "ray.util.collective",
    "ray.util.collective.collective_group.nccl_collective_group",
    "ray.train.v2._internal.execution.worker_group.worker_group",
    "ray.train.v2._internal.execution.checkpoint.validation_manager",
    "ray.train._internal.backend_executor",
    "ray.tune.execution.tune_controller",
    "ray.rllib.algorithms.algorithm_config",
    "ray.data",
    "ray.data._internal.execution.no_progress_guard",
    "ray.data._internal.execution.operators.shuffle_operators.shuffle_tasks",
    "ray.data._internal.gpu_shuffle.hash_shuffle",
    "ray.serve",
    "ray.serve._private.deployment_state",
    "ray.serve._private.replica",
    "ray.serve._private.proxy_state",
    "ray.serve._private.client",
    "ray.serve._private.haproxy",
    "ray.serve._private.api",
    "ray.llm._internal.serve.core.ingress.ingress",
    "ray.llm._internal.serve.serving_patterns.data_parallel.dp_server",
    "sglang.srt.server_args",  # made by the test
    "torch.distributed",
)


class Told(Exception):
    """What a function of a library would have waited for."""


def told(*arguments: Any, **named: Any) -> Any:
    raise Told(named.get("timeout", arguments[-1] if arguments else None))


def seconds_of(function: Any, *arguments: Any, **named: Any) -> Any:
    try:
        function(*arguments, **named)
    except Told as error:
        return error.args[0]
    return None


def compiled(name: str) -> list[Any]:
    """The context's own, and what a graph takes after the program has set the context."""
    import ray.dag
    from ray.dag.compiled_dag_node import CompiledDAG

    ray.get_runtime_context = MagicMock()
    CompiledDAG.DAGDriverProxyActor = MagicMock()
    context = ray.dag.DAGContext.get_current()
    first = getattr(context, name)
    setattr(context, name, GIVEN)
    fresh = getattr(ray.dag.DAGContext(), name)
    if name == "teardown_timeout":
        return [first, fresh]
    taken = getattr(CompiledDAG(enable_asyncio=False), f"_{name}")
    return [first, fresh, taken]


def actors_error() -> Any:
    import ray.experimental.compiled_dag_ref as module
    from ray.exceptions import RayChannelError

    ref = module.CompiledDAGRef.__new__(module.CompiledDAGRef)
    ref._ray_get_called = False
    ref._execution_index, ref._channel_index = 0, 0
    ref._dag = SimpleNamespace(
        _execute_until=MagicMock(side_effect=RayChannelError("closed")), worker_task_refs={}, is_teardown=True
    )
    module.ray.get = told
    return seconds_of(ref.get)


def gloo() -> Any:
    from ray.util.collective import collective

    manager = collective.GroupManager()
    took = []
    manager._registry = MagicMock()
    manager._registry.get.return_value = lambda *arguments: took.append(arguments[-1])
    manager._registry.get.return_value.check_backend_availability = lambda: True
    manager.create_collective_group("gloo", 2, 0, "one")
    manager.create_collective_group("gloo", 2, 0, "two", GIVEN)
    collective._check_inside_actor = lambda: None
    collective._group_mgr = manager
    collective.init_collective_group(2, 0, "gloo", "three")
    return took


def nccl() -> Any:
    from ray.util.collective.collective_group import nccl_collective_group as module

    meeting = module.Rendezvous("key")
    meeting._store = MagicMock()
    module.ray.get = told
    got = seconds_of(meeting.get_nccl_id)
    module.ray.get_actor = MagicMock(side_effect=ValueError)
    module.datetime = MagicMock()
    module.datetime.timedelta.side_effect = told_seconds
    return [got, seconds_of(module.Rendezvous("key").meet, 1)]


def told_seconds(seconds: float) -> Any:
    raise Told(seconds)


def train_health() -> Any:
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

    return WorkerGroup(MagicMock(), MagicMock())._worker_health_check_timeout_s


def train_validation() -> Any:
    from ray.train.v2._internal.execution.checkpoint.validation_manager import _PendingValidation

    return [_PendingValidation(MagicMock(), 0.0, each).timeout_s for each in (GIVEN, None)]


def train_resources() -> Any:
    from ray.train._internal import backend_executor as module

    module.get_current_placement_group = lambda: None
    module.ray._private.worker.global_worker = MagicMock()
    module.ray.util.placement_group = MagicMock()
    module.ray.wait = told
    it = module.BackendExecutor.__new__(module.BackendExecutor)
    it._placement_group, it._num_workers, it._resources_per_worker = None, 1, {"CPU": 1}
    it._trial_info = None
    return seconds_of(it._create_placement_group)


def tune_ending() -> Any:
    from ray.tune.execution.tune_controller import TuneController

    made = TuneController.__new__(TuneController)
    try:
        TuneController.__init__(made, storage=MagicMock())
    except Exception as error:  # noqa: BLE001 - what comes after the limit is of no interest
        print(f"tune: {error!r}", file=sys.stderr)
    return made._actor_cleanup_timeout


def tune_actor() -> Any:
    from ray.tune.trainable import function_trainable as module

    session = MagicMock()
    session.finish = told
    module.get_session = lambda: session
    made = module.FunctionTrainable.__new__(module.FunctionTrainable)
    return seconds_of(made.reset_config, {})


def rllib() -> Any:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    made = AlgorithmConfig.__new__(AlgorithmConfig)
    try:
        AlgorithmConfig.__init__(made)
    except Exception as error:  # noqa: BLE001 - it is made with packages that are only there in name
        print(f"rllib: {error!r}", file=sys.stderr)
    return [made.sample_timeout_s, made.evaluation_sample_timeout_s, made.offline_evaluation_timeout_s]


def data_progress() -> Any:
    from ray.data._internal.execution.no_progress_guard import NoProgressGuard
    from ray.data.context import DataContext

    own = DataContext.get_current().execution_no_progress_timeout_s
    return [NoProgressGuard({}, each)._timeout_s for each in (own, GIVEN, -1)]


def data_shards() -> Any:
    from ray.data._internal.execution.operators.shuffle_operators import shuffle_tasks as module
    from ray.data.context import DataContext

    waited = []

    def get(batch: Any, timeout: float | None = None) -> Any:
        waited.append(timeout)
        raise module.GetTimeoutError

    module.ray.get = get
    for given in (DataContext.get_current().hash_shuffle_reduce_get_timeout_s, GIVEN):
        with suppress(module.GetTimeoutError):
            module._get_shard_batch([], 0, 0, 1, given)
    return [round(waited[0] + waited[1]), round(waited[2] + waited[3])]


def data_gpus() -> Any:
    from ray.data._internal.gpu_shuffle.hash_shuffle import GPURankPool

    named = {"actor_cls_factory": None, "actor_kwargs": {}, "log_label": ""}
    return GPURankPool(nranks=1, total_nparts=1, setup_timeout_s=120.0, **named)._setup_timeout_s  # type: ignore[arg-type]


def serve_replica() -> Any:
    from ray.serve._private.deployment_state import ActorReplicaWrapper

    made = ActorReplicaWrapper.__new__(ActorReplicaWrapper)
    made._version = SimpleNamespace(deployment_config=SimpleNamespace(health_check_timeout_s=GIVEN))
    return made.health_check_timeout_s


def serve_file() -> Any:
    from ray.serve._private import client as module

    now = [0.0]
    module.time = SimpleNamespace(time=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + 10))
    module.ray.get = MagicMock()
    it = module.ServeControllerClient.__new__(module.ServeControllerClient)
    it._controller, it._shutdown, it.list_serve_statuses = MagicMock(), False, list
    with suppress(TimeoutError):
        it.deploy_apps(SimpleNamespace(name="app"), _blocking=True)
    return now[0]


def haproxy() -> Any:
    from ray.serve._private.haproxy import HAProxyConfig

    return [HAProxyConfig().timeout_client_s, HAProxyConfig(timeout_client_s=GIVEN).timeout_client_s]


def numbers(name: str, *modules: str) -> list[Any]:
    import importlib

    return [getattr(importlib.import_module(module), name) for module in modules]


def llm_meeting() -> Any:
    import asyncio

    from ray.llm._internal.serve.serving_patterns.data_parallel import dp_server as module

    now = iter((0.0, 1000.0, 4000.0))
    module._internal_kv_get = lambda key: None
    module.time = SimpleNamespace(monotonic=lambda: next(now))
    try:
        asyncio.run(module.GangMasterInfoRegistry.get("gang", poll_interval=0))
    except TimeoutError as error:
        return float(str(error).rpartition("after ")[2].rstrip("s."))


def variable(name: str) -> Any:
    return os.environ.get(name)


SERVE = "ray.serve._private."

PROBES = {
    "process groups (rendezvous: an hour)": lambda: (
        hasattr(sys.modules["torch.distributed"].new_group, "__devkit_raised__")
        or hasattr(sys.modules["torch.distributed.distributed_c10d"]._new_process_group_helper, "__devkit_raised__")
    ),
    "NCCL's heartbeat": lambda: variable("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
    "vLLM's iterations": lambda: variable("VLLM_ENGINE_ITERATION_TIMEOUT_S"),
    "vLLM's workers": lambda: variable("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
    "vLLM's calls": lambda: variable("VLLM_RPC_TIMEOUT"),
    "sglang's watchdog": lambda: sys.modules["sglang.srt.server_args"].ServerArgs(GIVEN).watchdog_timeout,
    "compiled graphs: a result": lambda: compiled("get_timeout"),
    "compiled graphs: an input": lambda: compiled("submit_timeout"),
    "compiled graphs: teardown(kill_actors=True)": lambda: compiled("teardown_timeout"),
    "compiled graphs: the error of an actor": actors_error,
    "device objects": lambda: numbers("RDT_FETCH_FAIL_TIMEOUT_SECONDS", "ray._private.ray_constants"),
    "collective groups: rendezvous, gloo": gloo,
    "collective groups: rendezvous, NCCL": nccl,
    "Train: a worker's health": train_health,
    "Train: the others at a report": lambda: variable("RAY_TRAIN_REPORT_BARRIER_TIMEOUT_S"),
    "Train: a validation": train_validation,
    "Train: resources, version 1": train_resources,
    "Tune: a trial that ends": tune_ending,
    "Tune: a trial that ends, before another one has its actor": tune_actor,
    "RLlib: samples": rllib,
    "Data: no progress": data_progress,
    "Data: a shuffle's shards": data_shards,
    "Data: setting up a shuffle on GPUs": data_gpus,
    "Serve: a replica's health": serve_replica,
    "Serve: the loop of a replica's code": lambda: numbers("USER_HEALTH_CHECK_PROBE_TIMEOUT_S", SERVE + "replica"),
    "Serve: the health of a deployment's actor": lambda: numbers(
        "DEPLOYMENT_ACTOR_HEALTH_CHECK_TIMEOUT_S", SERVE + "deployment_state"
    ),
    "Serve: a proxy's health": lambda: numbers("PROXY_HEALTH_CHECK_TIMEOUT_S", SERVE + "proxy_state"),
    "Serve: a proxy's start": lambda: numbers("PROXY_READY_CHECK_TIMEOUT_S", SERVE + "proxy_state"),
    "Serve: waiting for the proxies": lambda: numbers("HTTP_PROXY_TIMEOUT", SERVE + "client", SERVE + "api"),
    "Serve: waiting for applications of a file": serve_file,
    "Serve with HAProxy: a request": haproxy,
    "Serve with HAProxy: the program's router": lambda: numbers(
        "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_TIMEOUT_S", SERVE + "haproxy"
    ),
    "Serve for LLMs: a request": lambda: numbers(
        "DEFAULT_LLM_ROUTER_HTTP_TIMEOUT", "ray.llm._internal.serve.core.ingress.ingress"
    ),
    "Serve for LLMs: rendezvous": llm_meeting,
}


def read() -> dict[str, Any]:
    """One after another: some leave what they have replaced."""
    found: dict[str, Any] = {}
    import ray

    names = ("get", "wait", "get_actor", "get_runtime_context")
    plain = [(ray, name, getattr(ray, name)) for name in names]
    plain.append((ray._private.worker, "global_worker", ray._private.worker.global_worker))
    for name, probe in PROBES.items():
        try:
            found[name] = probe()
        except Exception as error:  # noqa: BLE001 - the test shows it
            found[name] = repr(error)
        for holder, each, value in plain:
            setattr(holder, each, value)
    return found


def load() -> None:
    import importlib

    for name in MODULES:
        importlib.import_module(name)


if __name__ == "__main__":
    if sys.argv[1] == "before":
        load()
        import ray.dag

        ray.dag.DAGContext.get_current()  # there already
    if sys.argv[1] != "never":
        timeouts.install()
    load()
    print(json.dumps(read()))
