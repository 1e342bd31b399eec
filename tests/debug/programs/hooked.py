"""A program with hooks of its own in `runtime_env`, and actors with an environment of theirs."""

import os
import sys

import hooks
import ray
import stage


@ray.remote(num_cpus=0)
class Worker:
    def work(self):
        answer = [os.environ.get(name) for name in ("OF_HOOK", "OF_ACTOR", "OF_ENVIRONMENT_HOOK")]
        return answer  # @work

    def has_devkit(self):
        try:
            import devkit  # noqa: F401
        except ImportError:
            return False
        return True


def in_each_worker():
    os.environ["OF_HOOK"] = "a callable"


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))  # Ray lets workers import from the driver's folder
    hook = in_each_worker if sys.argv[2] == "callable" else hooks.__name__ + ".in_each_worker"
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ["PYTHONPATH"]])
    ray.init(logging_level="ERROR", runtime_env={"worker_process_setup_hook": hook, "env_vars": {"PYTHONPATH": path}})
    stage.serve(sys.argv[1], globals())


if __name__ == "__main__":
    main()
