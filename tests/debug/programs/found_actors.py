"""Gets actors by name that are there already, with other arguments than they were made with."""

import ray

ray.init(address="auto", namespace="found")
TRAIN = {"shaping": True, "max_tokens": 64, "api_key": "sk-abcdefgh12345678"}
EVAL = {"shaping": False, "max_tokens": 64, "api_key": "sk-another-12345678"}


@ray.remote(num_cpus=0)
class Rewards:
    def __init__(self, config, scale=1.0, scorer=None):
        self.config = config

    def ready(self):
        return True


def rewards(name, *arguments, **named):
    return Rewards.options(name=name, get_if_exists=True).remote(*arguments, **named)  # @line


@ray.remote(num_cpus=0)
def elsewhere():
    rewards("shared", TRAIN, scale=0.5)  # @worker


first = rewards("shared", TRAIN)  # @made
ray.get(first.ready.remote())
rewards("shared", dict(TRAIN), 1)  # the same
second = Rewards.options(name="objects").remote(TRAIN, scorer=object())
Rewards.options(name="objects", get_if_exists=True).remote(TRAIN, scorer=object())  # of which nothing is known
ray.get(elsewhere.remote())
rewards("shared", EVAL)  # @driver
rewards("shared", EVAL, 2.0)  # told already
