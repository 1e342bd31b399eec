"""The one function that travels by value: it puts the rest of the package into a worker that has no devkit installed.

Everything it needs is inside it or in its closure, since its module doesn't exist where it runs. Files come into it
from the bundle's bytes alone: what lies in a folder may be anybody's, but for the one that `private.py` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make_hook(bundle: bytes, digest: str, settings: dict[str, Any], user_hook: Any) -> Callable[[], None]:
    """The `worker_process_setup_hook` of a job.

    Args:
        bundle: the package as a zip file.
        digest: what the folder of this version is named by.
        settings: `settings.Settings` as JSON.
        user_hook: the hook that the user's own runtime_env asks for: a callable, "module.function", or None.
    """

    def devkit_hook() -> None:
        import os

        try:
            import importlib
            import importlib.util
            import io
            import sys
            import types
            import zipfile

            agent = sys.modules.get("devkit_inworker.agent")
            if agent is None or agent.current() is None:  # else the cluster brought one, maybe of another version
                for name in [name for name in sys.modules if name.partition(".")[0] == "devkit_inworker"]:
                    del sys.modules[name]
                private: Any = types.ModuleType("devkit_private")
                exec(zipfile.ZipFile(io.BytesIO(bundle)).read("devkit_inworker/private.py"), vars(private))
                package = private.unpack(bundle, digest) / "devkit_inworker"
                spec: Any = importlib.util.spec_from_file_location(
                    "devkit_inworker", package / "__init__.py", submodule_search_locations=[str(package)]
                )
                module = importlib.util.module_from_spec(spec)
                sys.modules["devkit_inworker"] = module
                spec.loader.exec_module(module)
            importlib.import_module("devkit_inworker.boot").start_in_worker(settings)
        except Exception:  # noqa: BLE001 - an error here would end the user's worker; it is told on its error stream
            import traceback

            traceback.print_exc()
        if os.environ.get("DEVKIT_SPARE_HOOK"):  # the hub's worker, which a hook that fails or hangs must not keep back
            return
        if isinstance(user_hook, str):
            from ray._common.utils import load_class

            load_class(user_hook)()
        elif user_hook is not None:
            user_hook()

    return devkit_hook
