"""What every request passes first: who may ask, from where, how much and how slowly."""

import asyncio
import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from edbl.serve.limits import Limits
from edbl.serve.metrics import Metrics
from edbl.serve.refusals import Refused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "media-src 'self' blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN = ("GET", "HEAD")  # methods that change nothing
LOG = logging.getLogger("edbl.serve")


class Guard:
    """An ASGI application around another one."""

    def __init__(
        self, app: App, limits: Limits, metrics: Metrics, hosts: Collection[str], token: str | None = None
    ) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.hosts = frozenset(host.casefold() for host in hosts)
        self._token = token.encode() if token else None
        self._bytes = 0  # of bodies that are being read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        body = _Body(self, receive)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                more = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items() if k.lower().encode() not in own]
                closing = [(b"connection", b"close")] if status in (408, 413) else []
                message = {**message, "headers": [*message["headers"], *more, *closing]}
            # A client that takes nothing any more must not hold what is sent to it.
            seconds = self.limits.body_seconds + len(message.get("body", b"")) / self.limits.least_rate
            await asyncio.wait_for(send(message), seconds)

        self.metrics.under_way += 1
        try:
            self._check(scope)
            body.open(scope)
            await self.app(scope, body.receive, answer)
        except Refused as refused:
            if status == 0:
                await refuse(answer, refused)
        except TimeoutError:
            self.metrics.add("slow_clients")
            self._cut(scope)
        except Exception:
            if status == 0:
                LOG.exception("a request ended with an error of the program")
                await refuse(answer, Refused(500, "an error of the program; the server's log has it"))
            else:
                raise
        finally:
            self._bytes -= body.counted
            self.metrics.under_way -= 1
            route = scope.get("route")
            call = getattr(route, "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
            self.metrics.request(method, call, status, time.monotonic() - started)

    def _cut(self, scope: Scope) -> None:
        """Close a connection at once, whatever is still to be sent."""
        if (cut := scope.get("state", {}).get("cut")) is not None:
            cut()

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        host = _single(headers, b"host")
        if host is None or _name(host) not in self.hosts:
            raise Refused(403, "this server is not called that; its operator can allow the name with --allow-host")
        if scope["method"] not in OPEN:
            self._check_origin(headers, host)
        if self.metrics.under_way > self.limits.requests:
            raise Refused(503, "too many requests at a time; try again", {"Retry-After": "1"})
        if self._token is not None and (scope["path"].startswith("/v1") or scope["path"] == "/metrics"):
            given = _single(headers, b"authorization") or ""
            kind, _, token = given.partition(" ")
            if not hmac.compare_digest(token.strip().encode(), self._token) or kind.lower() != "bearer":
                raise Refused(401, "this server wants a token", {"WWW-Authenticate": "Bearer"})

    def _check_origin(self, headers: dict[bytes, list[bytes]], host: str) -> None:
        """Refuse what a page of somebody else has a browser send."""
        if b"origin" in headers:
            origin = urlsplit(_single(headers, b"origin") or "")
            if origin.scheme not in ("http", "https") or _place(origin.netloc) != _place(host):
                raise Refused(403, "a page of another place may not change anything here")
        site = _single(headers, b"sec-fetch-site")
        if site is not None and site not in ("same-origin", "none"):
            raise Refused(403, "a page of another place may not change anything here")


class _Body:
    """The body of a request: no more than it may have, and no slower than it may be."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self.guard, self._receive = guard, receive
        self.counted = 0  # bytes, of the bound of all requests
        self._read, self._most, self._done = 0, 0, False
        self._started = 0.0

    def open(self, scope: Scope) -> None:
        """See how much is announced."""
        limits = self.guard.limits
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").lower()
        self._most = limits.body_bytes if kind.startswith(b"multipart/form-data") else limits.text_bytes
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most:
            raise self._large()
        self._count(int(length) if length.isdigit() else 0)
        self._started = time.monotonic()

    def _large(self) -> Refused:
        return Refused(413, f"a request of this kind has at most {self._most // 2**20} MB; send fewer photos at a time")

    def _count(self, number: int) -> None:
        if self.guard._bytes + number > self.guard.limits.all_bytes:
            raise Refused(503, "too much is being sent at a time; try again", {"Retry-After": "1"})
        self.guard._bytes += number
        self.counted += number

    async def receive(self) -> Message:
        """Return the next part of it."""
        if self._done:
            return await self._receive()
        limits = self.guard.limits
        left = self._started + limits.body_seconds + self._read / limits.least_rate - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(left, 0.001))
        except TimeoutError:
            self.guard.metrics.add("slow_clients")
            raise Refused(408, "the request took too long to arrive") from None
        self._read += len(message.get("body", b""))
        if self._read > self._most:
            raise self._large()
        if self._read > self.counted:
            self._count(self._read - self.counted)
        self._done = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


async def refuse(send: Send, refused: Refused) -> None:
    """Answer with what is wrong."""
    data = json.dumps({"error": refused.why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in refused.headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _single(headers: dict[bytes, list[bytes]], name: bytes) -> str | None:
    """Return a header that may be there once."""
    found = headers.get(name, [])
    if len(found) > 1:
        raise Refused(400, f"the request has several headers {name.decode()}")
    return found[0].decode("latin-1") if found else None


def _name(netloc: str) -> str:
    """Return the host without its port."""
    return netloc.rpartition("]")[0].lstrip("[") if netloc.startswith("[") else netloc.partition(":")[0].casefold()


def _place(netloc: str) -> str:
    """Return host and port as they can be compared: the ports that need not be named are left out."""
    return netloc.casefold().removesuffix(":80").removesuffix(":443")
