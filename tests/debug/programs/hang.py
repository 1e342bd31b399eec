"""A gloo group of two ranks with a time-out of 4 seconds, one of which stops in a step of its own."""

import datetime
import sys
import tempfile

import ray
import torch
import torch.distributed


@ray.remote(num_cpus=0)
class Rank:
    def reduce(self, rank, store):
        limit = datetime.timedelta(seconds=4)
        torch.distributed.init_process_group("gloo", f"file://{store}", limit, world_size=2, rank=rank)
        value = torch.ones(1) + rank
        torch.distributed.all_reduce(value)
        value += rank  # @apart
        torch.distributed.all_reduce(value)
        return value.item()


def main():
    ray.init(logging_level="ERROR", log_to_driver=False)
    store = tempfile.mktemp()
    ranks = [Rank.remote() for _ in range(2)]
    print("result", ray.get([each.reduce.remote(rank, store) for rank, each in enumerate(ranks)]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
