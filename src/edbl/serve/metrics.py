"""What the server counts, as Prometheus reads it."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
KIND = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters, and times by call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()  # by method, route and status
        self._times: dict[str, list[int]] = {}
        self._sums: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self.under_way = 0

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; ``route`` is one of the API's, never what the client wrote."""
        with self._lock:
            self._requests[method, route, status] += 1
            times = self._times.setdefault(route, [0] * (len(SECONDS) + 1))
            times[bisect_left(SECONDS, seconds)] += 1
            self._sums[route] += seconds  # type: ignore[assignment]

    def add(self, name: str, number: int = 1) -> None:
        """Count something else."""
        with self._lock:
            self._counts[name] += number

    def text(self, now: Iterable[tuple[str, str, float]]) -> str:
        """Return all as text; ``now`` are further values: name, help, value."""
        with self._lock:
            lines = _head("edbl_requests_total", "counter", "Requests by call and status.")
            for (method, route, status), number in sorted(self._requests.items()):
                labels = f'method="{method}",call="{route}",status="{status}"'
                lines.append(f"edbl_requests_total{{{labels}}} {number}")
            lines += _head("edbl_request_seconds", "histogram", "Seconds from the head of a request to its answer.")
            for route, times in sorted(self._times.items()):
                total = 0
                for bound, number in zip([*map(str, SECONDS), "+Inf"], times, strict=True):
                    total += number
                    lines.append(f'edbl_request_seconds_bucket{{call="{route}",le="{bound}"}} {total}')
                lines.append(f'edbl_request_seconds_sum{{call="{route}"}} {self._sums[route]:.6f}')
                lines.append(f'edbl_request_seconds_count{{call="{route}"}} {total}')
            for name, number in sorted(self._counts.items()):
                lines += [*_head(f"edbl_{name}_total", "counter", f"{name.replace('_', ' ')}."),
                          f"edbl_{name}_total {number}"]  # fmt: skip
            for name, help_, value in (*now, ("requests_under_way", "Requests under way.", self.under_way)):
                lines += [*_head(f"edbl_{name}", "gauge", help_), f"edbl_{name} {value:g}"]
        return "\n".join([*lines, ""])


def _head(name: str, kind: str, help_: str) -> list[str]:
    return [f"# HELP {name} {help_}", f"# TYPE {name} {kind}"]
