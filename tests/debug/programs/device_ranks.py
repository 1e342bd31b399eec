"""Two ranks with tensors on a GPU: their third loss is not a number, on rank 1 only.

Not called `cuda`: torch imports a package of that name, and a program's folder comes first.
"""

import sys

import ray
import torch


@ray.remote(num_cpus=0, num_gpus=0.1)
class Learner:
    def __init__(self, rank):
        self.rank = rank
        self.weights = torch.arange(6, dtype=torch.float32, device="cuda").reshape(2, 3)

    def step(self, number):
        loss = (self.weights * number).sum()
        if number == 2 and self.rank == 1:
            loss = loss / 0 - loss / 0
        return float(loss)  # @loss

    def wait_for_the_device(self):
        batch = self.weights + 1  # a kernel is loaded at its first use, and that waits for the device
        torch.cuda._sleep(60_000_000_000)  # about half a minute in which the device is busy
        batch = self.weights + 1
        return batch  # @busy

    def fail(self):
        logits = self.weights.to(torch.bfloat16)
        logits[0, 1] = float("nan")
        raise ValueError(f"bad logits of rank {self.rank}: {tuple(logits.shape)}")  # @fails

    def grow(self):
        kept = []
        while True:
            kept.append(torch.empty(1 << 33, dtype=torch.uint8, device="cuda"))  # @grows


def main(kinds):
    ray.init(logging_level="ERROR", log_to_driver=False)
    learners = [Learner.remote(rank) for rank in range(2)]
    for kind in kinds:
        if kind == "steps":
            for number in range(4):
                print(kind, number, ray.get([learner.step.remote(number) for learner in learners]), flush=True)
            continue
        try:
            print(kind, ray.get(getattr(learners[0], kind).remote()), flush=True)
        except ray.exceptions.RayTaskError as error:
            print(kind, type(error).__name__, flush=True)


main(sys.argv[1:])
