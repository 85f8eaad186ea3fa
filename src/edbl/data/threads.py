"""Work on many images in threads: most of it waits for a disk, or is Pillow's, which lets go of Python meanwhile."""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from edbl.text import heed, passing_bar

PATIENCE = 1.0  # seconds before a progress bar appears

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Sequence[Item], label: str) -> list[Result]:
    """Return ``work`` of every item, in order, showing a progress bar if it takes long."""
    results = []
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
    begun = time.monotonic()
    try:
        # What Pillow warns of is judged by our own checks. The filters are one for all threads, so they are
        # set once, around the pool, and not in each thread.
        with warnings.catch_warnings(), passing_bar() as p:
            warnings.simplefilter("ignore")
            task = p.add_task(label, total=len(items), visible=False)
            for result in pool.map(work, items):
                results.append(result)
                p.update(task, completed=len(results), visible=time.monotonic() - begun > PATIENCE)
                heed()
    finally:
        pool.shutdown(cancel_futures=True)
    return results
