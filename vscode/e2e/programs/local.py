"""A program that is launched from the editor."""

import sys

import ray


@ray.remote
def greet(name):
    text = f"hello {name}"
    return text  # @greeted


print("SAID", ray.get(greet.remote(sys.argv[1] if len(sys.argv) > 1 else "world")), flush=True)
