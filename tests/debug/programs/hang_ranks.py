"""Three ranks of a gloo group that do as they are told, one of which leaves the others waiting.

hang_ranks.py SOCKET FOLDER. A signal SIGUSR1 ends any of the waits.
"""

import contextlib
import os
import signal
import sys
import threading
import time

import ray
import stage
import torch
import torch.distributed as dist

WORLD = 3


class Released(Exception):
    pass


def release(*_):
    raise Released


@ray.remote(num_cpus=0)
class Rank:
    def join(self, rank, folder):
        self.rank, self.folder = rank, folder
        signal.signal(signal.SIGUSR1, release)
        dist.init_process_group("gloo", f"file://{folder}/store", world_size=WORLD, rank=rank)
        self.group = dist.new_group(list(range(WORLD)), group_desc="pairs")
        self.value = torch.ones(8, 4)
        self.reduce()
        return os.getpid()

    def reduce(self):
        dist.all_reduce(self.value)  # @reduce

    def one_step(self, how):
        if self.rank == 1:
            with contextlib.suppress(Released):
                getattr(self, how)()
        self.reduce()

    def healthy(self, end):
        step = 0
        while True:  # only what all of them have heard ends it: the file may come between two ranks' looks
            time.sleep(0.1 * (self.rank + 1))
            stop = torch.tensor([int(os.path.exists(end))])
            dist.all_reduce(stop)
            step += 1
            if stop.item():
                break
        return step

    def announce(self):
        with open(f"{self.folder}/odd", "w") as file:
            file.write(str(os.getpid()))

    def sleeps(self):
        self.announce()
        time.sleep(3600)  # @sleeps

    def reads(self):
        theirs, _ours = os.pipe()
        self.announce()
        os.read(theirs, 1)  # @reads

    def raises(self):
        self.announce()
        raise ValueError("bad batch")  # @raises

    def locks(self):
        first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

        def load():
            with second:  # @load_holds
                both.wait()
                with first:  # @load_waits
                    pass

        threading.Thread(target=load, name="loader", daemon=True).start()
        with first:  # @main_holds
            both.wait()
            self.announce()
            second.acquire()  # @main_waits

    def freezes(self):
        self.announce()
        os.kill(os.getpid(), signal.SIGSTOP)

    def computes(self):
        self.announce()
        while True:  # @computes
            sum(range(1000))

    def crosses(self):
        self.announce()
        dist.all_reduce(self.value, group=self.group)  # @crosses

    def differs(self):
        self.announce()
        dist.broadcast(self.value, 0)  # @differs


def main(path, folder):
    ray.init(logging_level="ERROR", log_to_driver=False)
    ranks = [Rank.options(max_restarts=0).remote() for _ in range(WORLD)]
    pids = ray.get([each.join.remote(rank, folder) for rank, each in enumerate(ranks)])
    stage.serve(
        path, {"ray": ray, "ranks": ranks, "pids": pids, "step": lambda how: [r.one_step.remote(how) for r in ranks]}
    )


main(*sys.argv[1:])
