"""A program of its own: for each table that a line of its stdin asks for, Ray's rows of it as one JSON document.

Ray's own reader of its tables works without a dashboard; it needs Ray and asyncio, so it has a process for itself.
"""

import asyncio
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

USAGE = "usage"  # no table of Ray's: {node: {resource: [used, total]}}


async def main(address: str) -> None:
    from ray.exceptions import AuthenticationError

    manager: Any = None
    document: dict[str, object]
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            question = json.loads(line)
            if question["table"] == USAGE:
                document = {"rows": [await loop.run_in_executor(None, _usage, address)]}
            else:
                manager = manager or _manager(address)
                document = {"rows": await _rows(manager, **question)}
        except AuthenticationError:
            document = {"refused": True}
        except Exception as error:  # noqa: BLE001 - another Ray's, or none that answers: then its tables are unknown
            document = {"problem": f"{type(error).__name__}: {error}"}
        sys.stdout.write("\n" + json.dumps(document, default=str) + "\n")
        sys.stdout.flush()


def _manager(address: str) -> Any:
    from ray._private.grpc_utils import init_grpc_channel
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled, and its types don't name it
    from ray.dashboard.state_aggregator import StateAPIManager
    from ray.util.state.state_manager import StateDataSourceClient

    channel = init_grpc_channel(address, None, asynchronous=True)
    return StateAPIManager(StateDataSourceClient(channel, GcsClient(address=address)), ThreadPoolExecutor(1))


def _usage(address: str) -> dict[str, dict[str, tuple[float, float]]]:
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

    state = GlobalState()
    state._initialize_global_state(
        GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    )
    free = state.available_resources_per_node()
    return {
        node: {name: (total - free[node].get(name, 0.0), total) for name, total in every.items()}
        for node, every in state.total_resources_per_node().items()
        if node in free
    }


async def _rows(manager: Any, table: str, filters: list[tuple[str, str, str]], limit: int, seconds: float) -> list[Any]:
    from ray.util.state.common import ListApiOptions

    option = ListApiOptions(
        limit=limit,
        timeout=math.ceil(seconds),  # Ray counts in whole ones
        filters=[(column, predicate, value) for column, predicate, value in filters],
        detail=True,
        exclude_driver=False,
    )
    reply = await getattr(manager, f"list_{table}")(option=option)
    return list(reply.result)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
