"""Objects of packages of which a driver and its workers have other versions.

other_versions.py DRIVERS WORKERS KIND...      the folders with the packages; prints what the driver is told of each
"""

import sys

import ray

_, DRIVERS, WORKERS, *KINDS = sys.argv
OTHERS = {"num_cpus": 0, "runtime_env": {"env_vars": {"PYTHONPATH": WORKERS}}}


@ray.remote(max_retries=0, **OTHERS)
def take(value):
    return str(value)


@ray.remote(max_retries=0, **OTHERS)
def use(value):
    return value.fresh()  # @use


@ray.remote(**OTHERS)
class Holder:
    def give(self):
        import dkside

        return dkside.Stale()


def begin(kind):
    import dkeven
    import dkonly
    import dkside

    match kind:
        case "arrives":
            return take.remote(dkside.Fresh())
        case "stored":
            return take.remote(ray.put(dkside.Fresh()))
        case "used":
            return use.remote(dkside.Both())
        case "equal":
            return use.remote(dkeven.Both())
        case "absent":
            return take.remote(dkonly.Only())
        case "function":
            return ray.remote(max_retries=0, **OTHERS)(dkside.fresh).remote()
    raise AssertionError(kind)


def main():
    ray.init(logging_level="ERROR", log_to_driver=False)
    sys.path.insert(0, DRIVERS)  # not before: Ray gives its workers the folders that are there when it begins
    for kind in KINDS:
        try:
            print(f"{kind}: {ray.get(begin(kind))}", flush=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the driver is told
            print(f"{kind}: {type(error).__name__}", flush=True)
    holder = Holder.remote()
    ray.get(holder.give.remote())  # @back


if __name__ == "__main__":
    main()
