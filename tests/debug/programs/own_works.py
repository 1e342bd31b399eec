"""Starts a Ray, if there is none, and works without end, in the way that its word says."""

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import ray

BOXED = re.compile(r"\\boxed\{(?:[^{}]+|\{[^{}]*\})*\}")


@ray.remote(num_cpus=0)
class Sampler:
    def rewards(self, turn):
        sum(range(200_000))
        return [0.5] * 4  # all alike


@ray.remote(num_cpus=0)
class Verifier:
    def grade(self, text, truth):
        found = BOXED.findall(text)  # @regex
        return float(truth in found)


@ray.remote(num_cpus=0)
class PooledVerifier:
    def find(self, text):
        return BOXED.findall(text)  # @pooled

    def grade(self, text, truth):
        with ThreadPoolExecutor(1) as pool:
            return float(truth in pool.submit(self.find, text).result(timeout=2))


def pooled():
    verifier = PooledVerifier.remote()
    for _ in range(30):  # it works for a while, as such a program does
        ray.get(verifier.grade.remote("so \\boxed{3}", "3"))
        time.sleep(0.1)
    ray.get(verifier.grade.remote("so \\boxed{" + "x = 3, " * 40, "3"))


@ray.remote(num_cpus=0)
class Parser:
    def braces(self, text):
        at, found = 0, 0
        while at < len(text):
            char = text[at]
            found += char == "{"
            if char in "{}":
                at += 1
        return found


def parses():
    ray.get(Parser.remote().braces.remote("{}x{}"))


def circles():
    sampler, kept, turn = Sampler.remote(), {}, 0
    while len(kept) < 8:
        turn += 1
        rewards = ray.get(sampler.rewards.remote(turn))  # @circles
        if max(rewards) > min(rewards):
            kept[turn] = rewards


def regex():
    ray.get(Verifier.remote().grade.remote("so \\boxed{" + "x = 3, " * 40, "3"))


def main(how):
    ray.init(logging_level="ERROR")
    globals()[how]()


if __name__ == "__main__":
    main(sys.argv[1])
