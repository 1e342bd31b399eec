"""Ends while calls of its actors are under way, as a program does that saves its checkpoints beside the training."""

from __future__ import annotations

import time

import ray


@ray.remote(num_cpus=0)
class Saver:
    stopped = False

    def save(self, seconds: float) -> None:
        time.sleep(seconds)

    def serve(self) -> None:
        while not self.stopped:
            time.sleep(0.1)

    def leave(self, seconds: float) -> None:
        time.sleep(seconds)
        ray.actor.exit_actor()


@ray.remote(num_cpus=0)
def evaluate() -> None:
    time.sleep(60)


def main() -> None:
    ray.init()
    saver, service = Saver.remote(), Saver.remote()
    lasting = Saver.options(lifetime="detached", name=f"lasting-{time.time()}").remote()
    ray.get([each.save.remote(0.0) for each in (saver, service, lasting)])
    service.serve.remote()
    lasting.leave.remote(3)
    ray.cancel(evaluate.remote())
    saver.save.remote(60)  # @save
    saver.save.remote(0.0)  # @queued
    evaluate.remote()  # @task


main()
