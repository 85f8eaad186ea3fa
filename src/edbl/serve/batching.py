"""Photos of requests that arrive together go through the network together, in a thread of its own."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batches(Generic[Item, Result]):
    """While one batch is computed, what arrives waits for the next: no time is spent on waiting for more."""

    def __init__(self, compute: Callable[[Sequence[Item]], Sequence[Result]], most: int, count: Callable[[int], None]):
        self._compute, self._most, self._count = compute, most, count
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, items: Sequence[Item]) -> list[Result]:
        """Return the result of each item."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Result]] = [loop.create_future() for _ in items]
        self._waiting += zip(items, futures, strict=True)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return list(await asyncio.gather(*futures))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            part, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            part = [(item, future) for item, future in part if not future.done()]  # whoever wanted it may have left
            if not part:
                continue
            self._count(len(part))
            try:
                results = await loop.run_in_executor(self._thread, self._compute, [item for item, _ in part])
            except Exception as error:
                for _, future in part:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(part, results, strict=True):
                if not future.done():
                    future.set_result(result)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)
