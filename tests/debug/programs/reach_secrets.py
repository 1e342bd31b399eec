"""A rank that has the cluster's token in every kind of variable; it stops once, and then fails."""

import contextlib
import os

import ray


class Client:
    def __init__(self, text):
        self.text = text
        self.headers = {"Authorization": f"Bearer {text}", text: 1}


@ray.remote(num_cpus=0)
class Keeper:
    def __init__(self):
        self.rank = 1
        self.client = Client(os.environ["RAY_AUTH_TOKEN"])

    def step(self):
        plain = os.environ["RAY_AUTH_TOKEN"]
        environ, client, pair = os.environ, self.client, [(plain, plain.encode())]
        sentence, pieces = f"the token is {plain}, keep it", {plain, "x"}
        edge = "x" * 980 + plain  # where a long text is cut
        breakpoint()
        raise ValueError(f"{len(environ)} {len(pair)} {len(sentence)} {len(pieces)} {len(edge)} {client!r}")  # @fail


if __name__ == "__main__":
    ray.init(logging_level="ERROR", log_to_driver=False)
    with contextlib.suppress(ValueError):
        ray.get(Keeper.remote().step.remote())
    print("ended", flush=True)
