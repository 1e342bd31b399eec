"""Where crashes are caught, without Ray: each case is a process of its own, since the hooks are the process's."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from devkit.debug.inworker import postmortem
from tests.pace import stretched

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import json, sys, threading
sys.path.insert(0, sys.argv[1])
from devkit.debug.inworker import postmortem, imports
def on_crash(error, kind):
    import traceback
    where = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    print(json.dumps([kind, type(error).__name__, str(error), where]), flush=True)
"""


def outcome(body: str, *, code: int = 0, stderr: str | None = None) -> list[Any]:
    """What was reported by a program, which must end with `code`."""
    program = PRELUDE + textwrap.dedent(body)
    command = [sys.executable, "-c", program, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(100))
    assert done.returncode == code, done.stderr
    if stderr is not None:
        assert stderr in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# Ray's part in these tests: its modules by name, with the functions that its core calls.
RAY = """
import types
rpdb = types.ModuleType("ray.util.rpdb")
rpdb._is_ray_debugger_post_mortem_enabled = lambda: False
rpdb._post_mortem = lambda: print("ray's own")
rpdb.set_trace = "kept"
util = types.ModuleType("ray.util"); util.pdb = util.rpdb = rpdb
ray = types.ModuleType("ray"); ray.util = util
sys.modules.update({"ray": ray, "ray.util": util, "ray.util.rpdb": rpdb})
def store_task_errors():
    if ray.util.pdb._is_ray_debugger_post_mortem_enabled():
        ray.util.pdb._post_mortem()
"""


def test_rays_core_enters_our_function_and_ray_data_keeps_rays() -> None:
    reported = outcome(
        RAY
        + """
        postmortem.install(on_crash)
        from ray.util.rpdb import _is_ray_debugger_post_mortem_enabled as copied_by_ray_data
        assert copied_by_ray_data() is False and ray.util.pdb.set_trace == "kept"
        def task():
            raise ValueError("boom")
        try:
            task()
        except ValueError:
            store_task_errors()
            store_task_errors()
        """.replace("\n        ", "\n")
    )

    assert reported == [["task", "ValueError", "boom", ["<module>", "task"]]], "once"


def test_serve_is_left_alone() -> None:
    reported = outcome(
        RAY
        + """
postmortem.install(on_crash)
try:
    raise ValueError("request")
except ValueError:
    names = {"__name__": "ray.serve._private.replica", "ray": ray}
    exec("def _on_request_failed(): return ray.util.pdb._is_ray_debugger_post_mortem_enabled()", names)
    assert names["_on_request_failed"]() is False
    assert ray.util.pdb._is_ray_debugger_post_mortem_enabled() is True
"""
    )

    assert reported == []


def test_what_on_crash_raises_does_not_replace_the_programs_error() -> None:
    outcome(
        RAY
        + """
postmortem.install(lambda error, kind: 1 / 0)
try:
    raise ValueError("the program's")
except ValueError as error:
    store_task_errors()
    assert str(error) == "the program's"
""",
        stderr="could not be reported: ZeroDivisionError",
    )


def test_a_thread_is_reported_and_the_hook_before_ours_still_runs() -> None:
    reported = outcome(
        """
        threading.excepthook = lambda arguments: print('["previous"]', flush=True)
        postmortem.install(on_crash)
        def work():
            raise KeyError("k")
        def leaves():
            sys.exit(3)
        for target in (work, leaves):
            thread = threading.Thread(target=target); thread.start(); thread.join()
        """
    )

    assert reported[0][:3] == ["thread", "KeyError", "'k'"] and reported[0][3][-1] == "work"
    assert reported[1:] == [["previous"], ["previous"]]


def test_the_debuggers_own_threads_reach_no_hook_of_the_program() -> None:
    reported = outcome(
        """
        from devkit.debug.inworker import lanes, threads
        def fail():
            raise ValueError("ours")
        threading.excepthook = lambda arguments: print('["its own"]', flush=True)
        postmortem.install(on_crash)
        threads.start(fail, "devkit-one").join()
        after = threading.excepthook
        threading.excepthook = lambda arguments: print('["set later"]', flush=True)
        threads.start(fail, "devkit-two").join()
        threading.excepthook = after
        strange = threading.Thread(target=fail, name="devkit-of-old"); strange.start(); strange.join()
        program = threading.Thread(target=fail, name="program"); program.start(); program.join()
        """,
        stderr="devkit: the thread devkit-one ended: ValueError: ours",
    )

    assert [each[0] for each in reported] == ["thread", "its own"], "the last one alone"


def test_each_thread_of_the_debugger_is_made_in_one_place() -> None:
    inworker = ROOT / "devkit" / "debug" / "inworker"
    made = {path.name for path in inworker.glob("*.py") if re.search(r"\.Thread\(", path.read_text())}
    assert made == {"threads.py"}


def test_rays_own_threads_are_not_the_programs(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text(
        "import json\ndef own():\n    json.loads('{')\ndef call(f):\n    f()\n"
    )
    reported = outcome(
        f"""
        postmortem.install(on_crash)
        sys.path.insert(0, {str(tmp_path)!r})
        import ray
        def users():
            raise KeyError("user's")
        for target, arguments in ((ray.own, ()), (ray.call, (users,))):
            thread = threading.Thread(target=target, args=arguments); thread.start(); thread.join()
        """,
        stderr="JSONDecodeError",
    )

    assert [each[1] for each in reported] == ["KeyError"]


def test_an_exit_that_kills_an_async_actors_loop_is_a_crash() -> None:
    reported = outcome(
        """
        postmortem.install(on_crash)
        thread = threading.Thread(target=lambda: sys.exit(5), name="AsyncIO Thread: default")
        thread.start(); thread.join()
        """
    )

    assert reported[0][:3] == ["exit", "SystemExit", "5"]


def test_what_makes_a_driver_end_its_ray_is_told_once() -> None:
    """Though it is caught outside, where two lines of it are printed."""
    reported = outcome(
        """
        before_ray_ends = postmortem.install_in_driver(on_crash)
        def fit():
            raise ValueError("the advantages are nan")
        def run():
            try:
                fit()
            finally:
                before_ray_ends()
                before_ray_ends()
        try:
            run()
        except ValueError:
            pass
        before_ray_ends()
        try:
            sys.exit(0)
        except SystemExit:
            before_ray_ends()
        """
    )

    assert reported == [["driver", "ValueError", "the advantages are nan", ["run", "fit"]]]


@pytest.mark.parametrize(
    ("install", "expected"),
    [("install_in_driver", ["driver", "RuntimeError", "top", ["<module>"]]), ("install", None)],
)
def test_the_driver_is_watched_when_asked(install: str, expected: list[Any] | None) -> None:
    reported = outcome(
        f"""
        postmortem.{install}(on_crash)
        raise RuntimeError("top")
        """,
        code=1,
        stderr="RuntimeError: top",
    )

    assert reported == ([expected] if expected else [])


def test_a_driver_that_says_by_its_exit_that_it_failed_is_told_with_its_variables() -> None:
    reported = outcome(
        """
        postmortem.install_in_driver(on_crash)
        def main():
            wrong = 3
            sys.exit(1 if wrong else 0)
        try:
            main()
        except SystemExit as error:
            assert error.code == 1
        try:
            sys.exit(0)
        except SystemExit:
            pass
        sys.exit()
        """
    )

    assert reported == [["driver", "SystemExit", "1", ["<module>", "main"]]]


def test_what_a_driver_handles_when_it_leaves_is_told_in_place_of_the_exit() -> None:
    reported = outcome(
        """
        postmortem.install_in_driver(on_crash)
        def main():
            raise ValueError("no such column")
        try:
            main()
        except ValueError:
            sys.exit(1)
        """,
        code=1,
    )

    assert reported == [["driver", "ValueError", "no such column", ["<module>", "main"]]]


def test_a_driver_that_leaves_because_of_sigterm_is_told_so_whatever_it_handles() -> None:
    """Ray's handler of that signal calls `sys.exit(15)`."""
    reported = outcome(
        """
        import types
        ray = sys.modules["ray"] = types.ModuleType("ray")
        ray.__file__ = "/v/ray/__init__.py"
        postmortem.install_in_driver(on_crash)
        code = "import sys\\ndef sigterm_handler():\\n    sys.exit(15)"
        exec(compile(code, "/v/ray/_private/worker.py", "exec"), scope := {})
        try:
            raise ValueError("not ready: again in 5 s")
        except ValueError:
            scope["sigterm_handler"]()
        """,
        code=15,
    )

    assert reported == [["driver", "SystemExit", "15: SIGTERM came here", ["<module>", "sigterm_handler"]]]


def test_ray_trains_report_is_made_as_before(tmp_path: Path) -> None:
    package = tmp_path / "ray" / "train" / "v2" / "_internal" / "execution" / "worker_group"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:5]):
        (folder / "__init__.py").write_text("")
    (package / "thread_runner.py").write_text(
        "def construct_user_exception_with_traceback(e, exclude_frames=0):\n    return [repr(e), exclude_frames]\n"
    )
    reported = outcome(
        f"""
        postmortem.install(on_crash)
        sys.path.insert(0, {str(tmp_path)!r})
        from ray.train.v2._internal.execution.worker_group import thread_runner
        try:
            raise ValueError("rank 1")
        except ValueError as error:
            assert thread_runner.construct_user_exception_with_traceback(error, exclude_frames=3) == [repr(error), 3]
        """
    )

    assert [each[:3] for each in reported] == [["train", "ValueError", "rank 1"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('exec("raise SystemExit")', True),
        ("import builtins; getattr(builtins, 'exit', sys.exit)()", True),
        ("exec(compile('exit()', '<candidate>', 'exec'), {'exit': sys.exit})", True),
        ("sys.exit()", False),
    ],
)
def test_an_exit_by_code_that_was_given_is_told_from_one_of_the_actors_own(text: str, expected: bool) -> None:
    with pytest.raises(SystemExit) as caught:
        exec(compile(text, __file__, "exec"), {"sys": sys})
    assert postmortem.is_by_given_code(caught.value) is expected


def test_a_queue_of_rays_that_says_it_is_empty_has_not_crashed() -> None:
    from ray.util.queue import _QueueActor

    async def asks(call: str, *arguments: Any) -> BaseException:
        try:
            found = getattr(_QueueActor(1), call)(*arguments)
            await found
        except (queue.Empty, queue.Full, asyncio.QueueEmpty) as error:
            return error
        raise AssertionError(call)

    assert postmortem.is_an_answer(asyncio.run(asks("get", 0.001)))
    assert postmortem.is_an_answer(asyncio.run(asks("get_nowait")))
    assert postmortem.is_an_answer(asyncio.run(asks("put_nowait_batch", [1, 2])))
    with pytest.raises(queue.Empty) as own:
        queue.SimpleQueue[int]().get_nowait()
    assert not postmortem.is_an_answer(own.value)


def test_a_hard_exit_is_reported_with_the_stack_and_a_childs_is_not() -> None:
    reported = outcome(
        """
        import os
        postmortem.install(on_crash)
        if os.fork() == 0:
            os._exit(9)
        os.wait()
        def deep():
            os._exit(7)
        deep()
        """,
        code=7,
    )

    assert reported == [["exit", "SystemExit", "os._exit(7)", ["<module>", "deep"]]]


def test_a_drivers_hard_exit_is_reported_with_what_it_handled_and_one_with_success_is_not() -> None:
    reported = outcome(
        """
        import os
        def tell(error, kind):
            on_crash(error, f"{kind} after {error.__context__!r}")
        postmortem.install_in_driver(tell)
        def give_up():
            try:
                raise ValueError("no reward")
            except ValueError:
                os._exit(3)
        give_up()
        """,
        code=3,
    )

    assert reported == [
        [
            "driver after ValueError('no reward')",
            "SystemExit",
            "os._exit(3) after ValueError: no reward",
            ["<module>", "give_up"],
        ]
    ]
    assert outcome("import os; postmortem.install_in_driver(on_crash); os._exit(0)") == []


def test_a_drivers_hard_exit_with_success_on_the_way_out_of_an_error_is_reported() -> None:
    """Of an exception that is not printed then, nobody hears."""
    hides = """
import os
postmortem.install_in_driver(on_crash)
try:
    raise ValueError("rewards and values differ")
finally:
    os._exit(0)
"""
    assert [each[2] for each in outcome(hides)] == ["os._exit(0) after ValueError: rewards and values differ"]


def test_a_hard_exit_with_success_is_reported_where_a_task_ends_by_it() -> None:
    during = """
        import os
        from devkit.debug.inworker import identity
        postmortem.install(on_crash)
        identity.task_id = lambda: %r
        os._exit(0)
        """

    assert [each[:3] for each in outcome(during % "aa")] == [["exit", "SystemExit", "os._exit(0)"]]
    assert outcome(during % "") == []


def test_an_exit_caught_by_the_program_is_no_crash() -> None:
    reported = outcome(
        """
        import traceback
        postmortem.install(on_crash)
        def main_loop():
            try:
                sys.exit(3)
            except SystemExit:
                assert "SystemExit" in traceback.format_exc()
        main_loop()
        """
    )

    assert reported == []


# ---- on_import


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "late.py").write_text("value = 1\ndef copied(): return 'original'\n")
    (tmp_path / "reader.py").write_text("from late import copied\n")
    return f"sys.path.insert(0, {str(tmp_path)!r})\nprint_ = lambda *a: print(json.dumps(a), flush=True)\n"


def test_the_callback_runs_before_others_copy_from_the_module(module: str) -> None:
    reported = outcome(
        module
        + """
imports.on_import("late", lambda module: (setattr(module, "copied", lambda: "ours"), print_("called", module.value)))
import reader, late
print_(reader.copied(), type(late.__loader__).__name__, type(late.__spec__.loader).__name__)
import importlib; importlib.reload(late)
print_(late.copied())
"""
    )

    assert reported == [["called", 1], ["ours", "SourceFileLoader", "SourceFileLoader"], ["original"]]


def test_it_is_called_at_once_for_a_module_that_is_there(module: str) -> None:
    assert outcome(module + 'import late; imports.on_import("late", lambda m: print_(m.value))') == [[1]]


def test_several_callbacks_and_a_failing_one(module: str) -> None:
    reported = outcome(
        module
        + """
imports.on_import("late", lambda m: 1 / 0)
imports.on_import("late", lambda m: print_("second"))
import late
assert sum(type(finder).__name__ == "_Finder" for finder in sys.meta_path) == 1
""",
        stderr="late could not be prepared",
    )

    assert reported == [["second"]]


def test_a_module_that_is_being_imported_is_waited_for(module: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import builtins\nbuiltins.inside.set()\nbuiltins.go.wait(60)\nvalue = 2\n")
    reported = outcome(
        module
        + """
import builtins
builtins.inside, builtins.go, done = threading.Event(), threading.Event(), threading.Event()
threading.Thread(target=lambda: __import__("slow")).start()
assert inside.wait(60)
imports.on_import("slow", lambda m: (print_(m.value), done.set()))
print_("before")
go.set()
assert done.wait(60)
"""
    )

    assert reported == [["before"], [2]]


def test_a_module_that_fails_or_is_missing_fails_as_ever(module: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise OSError('broken')\n")
    reported = outcome(
        module
        + """
for name in ("broken", "nowhere"):
    imports.on_import(name, lambda m: print_("called"))
    try:
        __import__(name)
    except (OSError, ImportError) as error:
        print_(type(error).__name__)
import importlib.util
assert importlib.util.find_spec("broken").loader.get_source("broken").startswith("raise")
"""
    )

    assert reported == [["OSError"], ["ModuleNotFoundError"]]


def test_two_of_us_do_not_ask_each_other_for_ever(module: str) -> None:
    """devkit may be installed where its bundle is used as well."""
    reported = outcome(
        module
        + """
import importlib.util
spec = importlib.util.spec_from_file_location(f"{imports.__package__}.another", imports.__file__)
another = importlib.util.module_from_spec(spec)
spec.loader.exec_module(another)
imports.on_import("late", lambda m: print_("first"))
another.on_import("late", lambda m: print_("second"))
import late
print_(type(late.__loader__).__name__)
"""
    )

    assert sorted(reported[:2]) == [["first"], ["second"]] and reported[2:] == [["SourceFileLoader"]]
