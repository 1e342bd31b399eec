"""The trainer's command, with less of a Ray of its own: no dashboard and no autoscaler, which are twelve processes.

And its ranks are forked from the process behind DEVKIT_WARM_SOCKET, which has loaded torch (`warm_ranks.py`).
"""

from __future__ import annotations

import sys
from typing import Any

from devkit.smoke import warm_client
from trainer import main_ppo

prepare = main_ppo.prepare_own_cluster


def lean() -> None:
    """Called when the run will start a Ray of its own, and before Ray is imported."""
    prepare()
    from ray._private.node import Node

    begin = Node.__init__

    def with_forked_workers(self: Node, ray_params: Any, **options: Any) -> None:
        ray_params.update_if_absent(worker_path=warm_client.__file__, setup_worker_path=warm_client.__file__)
        begin(self, ray_params, **options)

    def no_dashboard(self: Node, **_options: object) -> None:
        self._webui_url = ""  # as of a Ray that was asked for none

    Node.__init__ = with_forked_workers
    Node.start_api_server = no_dashboard
    Node.start_monitor = lambda self: None


if __name__ == "__main__":
    main_ppo.prepare_own_cluster = lean
    main_ppo.leave(main_ppo.main(sys.argv[1:]))
