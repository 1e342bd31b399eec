"""The trainer's command, on a Ray of its own without dashboard and autoscaler, which are twelve processes."""

from __future__ import annotations

import sys

from trainer import main_ppo

prepare = main_ppo.prepare_own_cluster


def lean() -> None:
    """Called when the run will start a Ray of its own, and before Ray is imported."""
    prepare()
    from ray._private.node import Node

    def no_dashboard(self: Node, **_options: object) -> None:
        self._webui_url = ""  # as of a Ray that was asked for none

    Node.start_api_server = no_dashboard
    Node.start_monitor = lambda self: None


if __name__ == "__main__":
    main_ppo.prepare_own_cluster = lean
    main_ppo.leave(main_ppo.main(sys.argv[1:]))
