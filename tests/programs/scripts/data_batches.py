"""Ray Data: a function for batches that takes one of them wrong."""

import sys

import ray


def normalize(batch):
    total = batch["id"].sum()  # @total
    if 31 in batch["id"]:
        raise ValueError(f"batch of {len(batch['id'])} rows adds up to {total}")  # @fails
    batch["share"] = batch["id"] / max(total, 1)
    return batch


if __name__ == "__main__":
    rows = int(sys.argv[1])
    shares = ray.data.range(rows).map_batches(normalize, batch_size=10).take_all()
    print("rows", len(shares), flush=True)
