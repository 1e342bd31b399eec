"""Objects of packages of which driver and workers have other versions. The lines that fail wear a mark.

other_versions.py DRIVERS WORKERS KIND...      the two folders with the packages; prints what the driver is told
"""

import sys

import ray

_, DRIVERS, WORKERS, *KINDS = sys.argv
RUN = {"num_cpus": 0, "max_retries": 0, "runtime_env": {"env_vars": {"PYTHONPATH": WORKERS}}}


def begin(kind):
    import dkonly
    import dkside

    @ray.remote(**RUN)
    def take(value):
        return str(value)

    @ray.remote(**RUN)
    def use(value):
        return value.fresh()  # @use

    @ray.remote(**RUN)
    def made_of(count):
        return dkside.Fresh(count)

    @ray.remote(num_cpus=0, runtime_env=RUN["runtime_env"])
    class Holder:
        def give(self):
            import dkside

            return dkside.Stale()

        def take(self, value):
            return str(value)

    match kind:
        case "arrives":
            return take.remote(dkside.Fresh(1))
        case "put":
            return Holder.remote().take.remote(ray.put(dkside.Fresh(1)))
        case "used":
            return use.remote(dkside.Both())
        case "absent":
            return take.remote(dkonly.Only())
        case "function":
            return ray.remote(**RUN)(dkside.function).remote()
        case "same":
            return take.remote({}.keys)
        case "back":
            return Holder.remote().give.remote()
    return made_of.remote(kind)


def main():
    ray.init(logging_level="ERROR", log_to_driver=False)
    sys.path.insert(0, DRIVERS)  # now: Ray would give its workers what was there before
    for kind in KINDS:
        try:
            print(f"{kind}: {ray.get(begin(kind))}", flush=True)
        except Exception as error:
            print(f"{kind}: {type(error).__name__}", flush=True)
            if kind == KINDS[-1]:
                raise


if __name__ == "__main__":
    main()
