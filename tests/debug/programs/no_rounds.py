"""A driver and a trainer that resume where there is nothing left to be done; and one that is whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import ray
import torch
from torch.utils.data import DataLoader


class Rest:
    """A sampler that is restored at the end of an epoch."""

    def __init__(self, rows: int, done: int) -> None:
        self.rows, self.done = rows, done

    def __iter__(self) -> Iterator[int]:
        first, self.done = self.done, 0
        return iter(range(first, self.rows))

    def __len__(self) -> int:
        return self.rows


@ray.remote
class Trainer:
    def __init__(self) -> None:
        self.layer = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def update(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.layer(batch).sum().backward()
        self.optimizer.step()

    def fit(self, done: int, epochs: int) -> int:
        rows = DataLoader(torch.ones(4, 1), sampler=Rest(4, done % 5))  # type: ignore[arg-type]
        val_loader: list[torch.Tensor] = []
        steps = done
        for _epoch in range(done // len(rows), epochs):
            for batch in rows:  # @left-out
                self.update(batch)
                steps += 1
            for batch in val_loader:
                self.update(batch)
        return steps

    def go_on(self, start: int, total_steps: int) -> int:
        for step in range(start, total_steps):  # @over
            self.update(torch.full((1, 1), float(step)))
        return total_steps


def main(done: int) -> None:
    ray.init()
    trainer = Trainer.remote()
    print("steps", ray.get(trainer.fit.remote(done, 3)))
    print("steps", ray.get(trainer.go_on.remote(done, 4)))
    for _step in range(done, 4):  # @drivers
        ray.get(trainer.update.remote(torch.ones(1, 1)))
    ray.get(trainer.go_on.remote(5, 6) if done == 0 else ray.put(0))


if __name__ == "__main__":
    main(int(sys.argv[1]))
