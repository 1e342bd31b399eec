"""200 short tasks."""

import ray


@ray.remote(num_cpus=0.5)
def square(number):
    result = number * number
    return result  # @result


if __name__ == "__main__":
    ray.init()
    print("sum", sum(ray.get([square.remote(number) for number in range(200)])), flush=True)
