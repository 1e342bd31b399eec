"""While somebody debugs, waiting is no error: what would end a run beside a stopped process lasts a day.

`TABLE` has every such limit of Ray, and of what runs in Ray, with how it is read; `docs/time-limits.md` says which ones
stay as they are, and why. Lifted is where a limit is taken, so it does not matter who loaded the module first, nor
whether the number is the library's or the program gave it. A variable that you have set yourself keeps its limit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from . import torch_groups
from .imports import on_import
from .lifting import Argument, Attribute, ByHand, Constant, Lift, Property, Written

DAY = 86400
# Where a limit also tells of those who died before they came, or of a machine that is too small.
MEETING = 3600

# How a limit is read.
IMPORT = "the environment, when its module is imported"
INIT = "an attribute, read when its object is created"
USE = "the environment, at the start of each operation"
ASKED = "a property of what the program configured, at each use"
GIVEN = "an argument"
FIXED = "a constant in the code"


@dataclass(frozen=True)
class Limit:
    """One time-out. Numbers that mean "none", or that are longer already, stay."""

    name: str
    read: str
    variable: str = ""  # the environment's, if there is one
    lifts: tuple[Lift, ...] = ()
    least: int = DAY  # seconds
    unit: int = 1  # 1000: it counts milliseconds
    variable_unit: int = 1  # and its variable
    no_limit: bool = True  # None means that there is none; else: the library's own short one

    @property
    def variable_value(self) -> str:
        return str(self.least * self.variable_unit)

    def raised(self, before: Any) -> Any:
        """
        >>> limit = Limit("", GIVEN)
        >>> limit.raised(10), limit.raised(0.5), limit.raised(100000), limit.raised(timedelta(minutes=1)).days
        (86400, 86400.0, 100000, 1)
        >>> limit.raised(None), limit.raised(-1), limit.raised(0), limit.raised("10"), limit.raised(True)
        (None, -1, 0, '10', True)
        >>> Limit("", GIVEN, least=MEETING, unit=1000, no_limit=False).raised(None)
        3600000
        """
        least = self.least * self.unit
        if before is None and not self.no_limit:
            return least
        if isinstance(before, timedelta):
            return max(before, timedelta(seconds=self.least)) if before > timedelta(0) else before
        if not isinstance(before, (int, float)) or isinstance(before, bool) or before <= 0:
            return before
        return max(before, type(before)(least))


_SERVE = "ray.serve._private."
_SERVE_NUMBERS = _SERVE + "constants"
_DATA = "ray.data._internal."
_COMPILED = "ray.dag.compiled_dag_node"
_CONTEXT = partial(Attribute, "ray.dag.context", "DAGContext", live="_default_context")
_NCCL = "ray.util.collective.collective_group.nccl_collective_group"

TABLE = (
    # torch.distributed; what vLLM and sglang have for their own workers
    Limit(
        "process groups (rendezvous: an hour)",
        GIVEN,
        lifts=(ByHand("torch.distributed.distributed_c10d", torch_groups.lift),),
    ),
    # Its monitor aborts the process after 8 minutes.
    Limit("NCCL's heartbeat", USE, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
    Limit("vLLM's iterations", USE, "VLLM_ENGINE_ITERATION_TIMEOUT_S"),
    Limit("vLLM's workers", USE, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
    Limit("vLLM's calls", USE, "VLLM_RPC_TIMEOUT", variable_unit=1000),
    Limit("sglang's watchdog", INIT, lifts=(Attribute("sglang.srt.server_args", "ServerArgs", ("watchdog_timeout",)),)),
    # Ray's compiled graphs
    Limit(
        "compiled graphs: a result",
        IMPORT,
        "RAY_CGRAPH_get_timeout",
        (_CONTEXT(("get_timeout",)), Attribute(_COMPILED, "CompiledDAG", ("_get_timeout",))),
    ),
    Limit(
        "compiled graphs: an input",
        IMPORT,
        "RAY_CGRAPH_submit_timeout",
        (_CONTEXT(("submit_timeout",)), Attribute(_COMPILED, "CompiledDAG", ("_submit_timeout",))),
    ),
    Limit(
        "compiled graphs: teardown(kill_actors=True)",
        IMPORT,
        "RAY_CGRAPH_teardown_timeout",
        (_CONTEXT(("teardown_timeout",)),),
    ),
    Limit(
        "compiled graphs: the error of an actor",
        FIXED,
        lifts=(Written("ray.experimental.compiled_dag_ref", "CompiledDAGRef.get", 10),),
    ),
    # Ray's objects on devices, and its collective groups
    Limit(
        "device objects",
        IMPORT,
        "RAY_rdt_fetch_fail_timeout_milliseconds",
        (Constant("ray._private.ray_constants", "RDT_FETCH_FAIL_TIMEOUT_SECONDS"),),
        variable_unit=1000,
    ),
    Limit(
        "collective groups: rendezvous, gloo",
        GIVEN,
        "collective_gloo_timeout",
        (Argument("ray.util.collective.collective", "GroupManager.create_collective_group", "gloo_timeout"),),
        least=MEETING,
        unit=1000,
        variable_unit=1000,
        no_limit=False,
    ),
    Limit(
        "collective groups: rendezvous, NCCL",
        GIVEN,
        lifts=tuple(Argument(_NCCL, f"Rendezvous.{name}", "timeout_s") for name in ("meet", "get_nccl_id")),
        least=MEETING,
    ),
    # Ray Train
    Limit("Train: a worker's health", USE, "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"),
    Limit("Train: the others at a report", USE, "RAY_TRAIN_REPORT_BARRIER_TIMEOUT_S"),  # Ray 2.49; then without limit
    Limit(
        "Train: a validation",
        GIVEN,
        lifts=(
            Attribute(
                "ray.train.v2._internal.execution.checkpoint.validation_manager", "_PendingValidation", ("timeout_s",)
            ),
        ),
    ),
    Limit("Train: resources, version 1", USE, "TRAIN_PLACEMENT_GROUP_TIMEOUT_S", least=MEETING),
    # Ray Tune, RLlib
    Limit("Tune: a trial that ends", USE, "TUNE_FORCE_TRIAL_CLEANUP_S"),
    Limit("Tune: a trial that ends, before another one has its actor", USE, "TUNE_FUNCTION_THREAD_TIMEOUT_S"),
    Limit(
        "RLlib: samples",
        INIT,
        lifts=(
            Attribute(
                "ray.rllib.algorithms.algorithm_config",
                "AlgorithmConfig",
                ("sample_timeout_s", "evaluation_sample_timeout_s", "offline_evaluation_timeout_s"),
            ),
        ),
    ),
    # Ray Data
    Limit(
        "Data: no progress",
        IMPORT,
        "RAY_DATA_EXECUTION_NO_PROGRESS_TIMEOUT_S",
        (Attribute(_DATA + "execution.no_progress_guard", "NoProgressGuard", ("_timeout_s",)),),
    ),
    Limit(
        "Data: a shuffle's shards",
        IMPORT,
        "RAY_DATA_HASH_SHUFFLE_REDUCE_GET_TIMEOUT_S",
        (Argument(_DATA + "execution.operators.shuffle_operators.shuffle_tasks", "_get_shard_batch", "timeout_s"),),
    ),
    Limit(
        "Data: setting up a shuffle on GPUs",
        GIVEN,
        lifts=(Attribute(_DATA + "gpu_shuffle.hash_shuffle", "GPURankPool", ("_setup_timeout_s",)),),
        least=MEETING,
    ),
    # Ray Serve
    Limit(
        "Serve: a replica's health",
        ASKED,
        lifts=(Property(_SERVE + "deployment_state", "ActorReplicaWrapper", "health_check_timeout_s"),),
    ),
    Limit(
        "Serve: the loop of a replica's code",
        IMPORT,
        "RAY_SERVE_USER_HEALTH_CHECK_PROBE_TIMEOUT_S",
        (Constant(_SERVE_NUMBERS, "USER_HEALTH_CHECK_PROBE_TIMEOUT_S"),),
    ),
    Limit(
        "Serve: the health of a deployment's actor",
        IMPORT,
        "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_TIMEOUT_S",
        (Constant(_SERVE_NUMBERS, "DEPLOYMENT_ACTOR_HEALTH_CHECK_TIMEOUT_S"),),
    ),
    Limit(
        "Serve: a proxy's health",
        IMPORT,
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S",
        (Constant(_SERVE_NUMBERS, "PROXY_HEALTH_CHECK_TIMEOUT_S"),),
    ),
    Limit(
        "Serve: a proxy's start",
        IMPORT,
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S",
        (Constant(_SERVE_NUMBERS, "PROXY_READY_CHECK_TIMEOUT_S"),),
        least=MEETING,
    ),
    Limit(
        "Serve: waiting for the proxies", FIXED, lifts=(Constant(_SERVE_NUMBERS, "HTTP_PROXY_TIMEOUT"),), least=MEETING
    ),
    Limit(
        "Serve: waiting for applications of a file",
        FIXED,
        lifts=(Written(_SERVE + "client", "ServeControllerClient.deploy_apps", 60),),
    ),
    Limit(
        "Serve with HAProxy: a request",
        IMPORT,
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S",
        (Attribute(_SERVE + "haproxy", "HAProxyConfig", ("timeout_client_s",)),),
    ),
    Limit(
        "Serve with HAProxy: the program's router",
        IMPORT,
        "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_TIMEOUT_S",
        (Constant(_SERVE_NUMBERS, "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_TIMEOUT_S"),),
    ),
    Limit(
        "Serve for LLMs: a request",
        IMPORT,
        "RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT",
        (Constant("ray.llm._internal.serve.constants", "DEFAULT_LLM_ROUTER_HTTP_TIMEOUT"),),
    ),
    Limit(
        "Serve for LLMs: rendezvous",
        GIVEN,
        lifts=(
            Argument(
                "ray.llm._internal.serve.serving_patterns.data_parallel.dp_server",
                "GangMasterInfoRegistry.get",
                "timeout",
            ),
        ),
        least=MEETING,
    ),
)


def install() -> None:
    """Before the libraries are imported, or after."""
    for limit in TABLE:
        if limit.variable and os.environ.setdefault(limit.variable, limit.variable_value) != limit.variable_value:
            continue  # yours
        for lift in limit.lifts:
            on_import(lift.module, partial(lift.apply, raised=limit.raised))
