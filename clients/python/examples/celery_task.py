"""Celery: a task that holds a GPU while it runs.

Start a worker with ``celery -A celery_task worker``. The worker process holds the lease; if the lease is
lost, the task ends with `kofm.LeaseLost` and Celery retries it.
"""

from __future__ import annotations

from typing import Any, List

import kofm
from celery import Celery

app = Celery("jobs", broker="redis://localhost/0")


@app.task(bind=True, acks_late=True, autoretry_for=(kofm.LeaseLost, kofm.Unreachable), max_retries=3)
def train(self: Any, steps: int) -> List[str]:
    # The task's id is the owner, so that `kofm status` shows which task holds the units.
    owner = f"celery:{self.request.id}"
    with kofm.acquire("gpu:1", "licence", wait="1h", owner=owner, reason="train") as lease:
        for _ in range(steps):
            lease.check()
        return lease.units["gpu"]
