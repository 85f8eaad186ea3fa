"""What stands between requests and models: who decodes, who computes, who writes, and when."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from starlette.background import BackgroundTask
from starlette.responses import FileResponse

from edbl.data.decoding import Decoded
from edbl.errors import EdblError
from edbl.scratch import scratch
from edbl.serve.batching import Batches
from edbl.serve.held import Shown
from edbl.serve.limits import Limits
from edbl.serve.metrics import Metrics
from edbl.serve.model import Learning, Served
from edbl.serve.refusals import Refused, refusal
from edbl.serve.shelf import Shelf
from edbl.serve.uploads import File

BATCH = 64  # photos, most
PAUSE, LONGEST = 2.0, 60.0  # seconds before what can wait is done, and before it is tried again

T = TypeVar("T")


class Desk:
    """Threads for each kind of work: photos are decoded beside the network, and one change is made at a time."""

    def __init__(self, shelf: Shelf, limits: Limits, metrics: Metrics) -> None:
        self.shelf, self.limits, self.metrics = shelf, limits, metrics
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="decode")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._batches: dict[str, Batches[Shown, Shown]] = {}
        self.ending = asyncio.Event()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._untidy: set[Served] = set()
        self._later: dict[Served, asyncio.Task[None]] = {}
        self.streams = 0

    async def model(self, name: str) -> Served:
        """Return a model, loading it if it was not wanted before."""
        if any(one.name == name for one in self.shelf.loaded()):
            return self.shelf.get(name)
        return await self._in(self._writer, None, lambda: self.shelf.get(name))

    async def decode(self, model: Served, files: Sequence[File]) -> list[Shown | Decoded]:
        """Decode photos, in as many threads as there are cores."""
        loop = asyncio.get_running_loop()
        work = [loop.run_in_executor(self._decoders, model.read, one.data, one.name) for one in files]
        return list(await asyncio.gather(*work))

    async def ask(self, model: Served, shown: Sequence[Shown]) -> list[Shown]:
        """Ask a model about photos, together with those of other requests."""
        if model.name not in self._batches:
            self._batches[model.name] = Batches(model.ask, BATCH, lambda n: self._counted(n))
        self._use(model)
        try:
            return await self._batches[model.name](shown)
        except (EdblError, OSError) as error:
            raise refusal(error, model.places) from error

    def _use(self, model: Served) -> None:
        """Note that a model is used; one that was not for long lets go of its tensors, between two changes."""
        if (resting := self.shelf.used(model)) is not None:
            self._writer.submit(resting.rest)

    def _counted(self, number: int) -> None:
        self.metrics.add("batches")
        self.metrics.add("predictions", number)

    async def read(self, model: Served, work: Callable[[], T]) -> T:
        """Do work that changes nothing."""
        return await self._in(self._readers, model, work)

    async def change(self, model: Served, work: Callable[[], T], soon: bool = False) -> T:
        """Make a change; whoever asked may leave meanwhile, and it is made all the same.

        What was put off is done before, unless the change takes it into account: one that is to be made ``soon``.
        """
        done = asyncio.ensure_future(self._in(self._writer, model, work if soon else _after(model, work)))
        try:
            result = await asyncio.shield(done)
        finally:
            if done.done():
                self.metrics.add("changes")
        self._untidy.add(model)
        if model not in self._later or self._later[model].done():
            self._later[model] = asyncio.get_running_loop().create_task(self._tidy(model))
        return result

    async def work(self, model: Served, work: Callable[[], T]) -> T:
        """Do work that changes nothing and takes long: it has its turn among changes, as it needs what they need.

        What was put off is done before, where it can be.
        """
        return await self._in(self._writer, model, _after(model, work, EdblError, OSError))

    async def make(self, work: Callable[[], T]) -> T:
        """Make a model."""
        return await self._in(self._writer, None, work)

    async def exported(self, model: Learning) -> FileResponse:
        """Return a model as a file, which is removed once it is sent."""
        opened = ExitStack()  # what a killed server left there goes with the next such folder
        place = await self.read(model, lambda: opened.enter_context(scratch()))
        try:
            await self.work(model, lambda: model.export(place / "model.onnx"))
        except BaseException:
            opened.close()
            raise
        return FileResponse(
            place / "model.onnx",
            media_type="application/octet-stream",
            filename=f"{model.name}.onnx",
            background=BackgroundTask(opened.close),
        )

    async def _tidy(self, model: Served) -> None:
        """Let a model do what can wait, once nothing was changed for a while; other changes come between its parts."""
        pause = PAUSE
        while model in self._untidy:
            await asyncio.sleep(pause)
            self._untidy.discard(model)
            try:
                while (part := await self._in(self._ahead, model, model.ahead)) is not None:
                    await self._in(self._writer, model, part)
                await self._in(self._writer, model, model.idle)
            except Refused:  # another process works there, or the disk is full
                self._untidy.add(model)
                pause = min(2 * pause, LONGEST)

    async def _in(self, pool: ThreadPoolExecutor, model: Served | None, work: Callable[[], T]) -> T:
        if model is not None and pool is self._writer:
            self._use(model)
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except (EdblError, OSError) as error:
            raise refusal(error, model.places if model else {str(self.shelf.place): "the server"}) from error

    async def events(self, model: Learning) -> AsyncIterator[str]:
        """Yield news of an update as server-sent events, and a comment now and then, so that who left is noticed."""
        if self.streams >= self.limits.streams:
            raise Refused(503, "too many listen already", {"Retry-After": "5"})
        self.streams += 1
        pool = ThreadPoolExecutor(1)
        try:
            news = model.events(1.0)
            while not self.ending.is_set():
                one: tuple[str, Any] | None = await asyncio.get_running_loop().run_in_executor(pool, next, news, None)
                if one is None:
                    return
                yield event(*one)
        finally:
            self.streams -= 1
            pool.shutdown(wait=False)

    def close(self) -> None:
        """Finish all that is under way."""
        for later in self._later.values():
            later.cancel()
        for pool in (self._decoders, self._readers, self._ahead, self._writer):
            pool.shutdown(wait=True)
        for batches in self._batches.values():
            batches.close()
        self.shelf.close()


def _after(model: Served, work: Callable[[], T], *pardoned: type[Exception]) -> Callable[[], T]:
    def both() -> T:
        with suppress(*pardoned):
            model.finish()
        return work()

    return both


def event(name: str, values: Any) -> str:
    """Return a server-sent event; a comment where there is no news."""
    return f"event: {name}\ndata: {json.dumps(values)}\n\n" if name else ": \n\n"
