"""Ray: an actor that holds units of the cluster as long as it lives."""

from __future__ import annotations

from typing import List

import kofm
import ray


@ray.remote
class Trainer:
    def __init__(self) -> None:
        # Ray places the actor; kofm decides which units it may use, across clusters and other users.
        self.lease = kofm.acquire("gpu:1", wait="30m", reason="ray actor")

    def units(self) -> List[str]:
        return self.lease.units["gpu"]

    def step(self, number: int) -> int:
        self.lease.check()
        return number + 1

    def close(self) -> None:
        self.lease.release()


def main() -> None:
    ray.init()
    trainer = Trainer.remote()
    try:
        print(ray.get(trainer.units.remote()), ray.get(trainer.step.remote(1)))
    finally:
        ray.get(trainer.close.remote())


if __name__ == "__main__":
    main()
