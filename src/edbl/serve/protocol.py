"""HTTP connections that are not held open by who sends, or takes, too slowly."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from edbl.serve.limits import Limits


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return a protocol of uvicorn with bounds."""
    there: set[Any] = set()

    class Bounded(H11Protocol):
        """A connection: a request's head must be there in time, and there are only so many."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.app_state = {**self.app_state, "cut": transport.abort}
            if len(there) >= limits.connections:
                transport.abort()
            there.add(self)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete and self._late is not None:
                self._late.cancel()
                self._late = None

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            there.discard(self)
            if self._late is not None:
                self._late.cancel()
            super().connection_lost(exc)

        def _wait(self) -> None:
            if self._late is not None:
                self._late.cancel()
            self._late = self.loop.call_later(limits.idle_seconds + limits.head_seconds, self.transport.abort)

    return Bounded
