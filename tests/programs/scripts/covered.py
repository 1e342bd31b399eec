"""Tasks that are measured by coverage, each with a tracer of its own."""

import sys

import coverage
import ray


@ray.remote
def measured_sign(number, data):
    tracer = coverage.Coverage(data_file=data, data_suffix=True, source_pkgs=["measured"])
    tracer.start()
    try:
        from measured import sign

        return sign(number)
    finally:
        tracer.stop()
        tracer.save()


if __name__ == "__main__":
    ray.init()
    print("signs", [ray.get(measured_sign.remote(number, sys.argv[1])) for number in (3, 5)], flush=True)
