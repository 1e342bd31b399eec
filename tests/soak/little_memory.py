"""An actor whose process may have no more memory than it has, and wants a gigabyte."""

import resource

import ray


@ray.remote(num_cpus=0)
class Hungry:
    def eat(self):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        try:
            return len(bytearray(1 << 30))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def main():
    ray.init(logging_level="ERROR", log_to_driver=False)
    hungry = Hungry.remote()
    try:
        ray.get(hungry.eat.remote())
    except ray.exceptions.RayError as error:
        print(type(error).__name__)


if __name__ == "__main__":
    main()
