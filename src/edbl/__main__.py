"""The command ``edbl``, or ``python -m edbl``: what Ctrl-C does is settled before all that takes time."""

# What `signal` consists of, and there at once: Ctrl-C may be pressed during any other import.
import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

WAIT = 1.5  # seconds that a command has to end by itself


def start() -> None:
    """Run the command line as a process of its own."""
    _signal.signal(_signal.SIGINT, _stop)
    sys.unraisablehook = _unraisable
    try:
        from edbl.cli import main

        main()
    finally:
        _signal.signal(_signal.SIGINT, _end)


def _stop(number: int, frame: "FrameType | None") -> None:
    """End the command, within two seconds; all that it writes is whole at every moment."""
    inner = frame
    while inner is not None:  # an import that is interrupted may swallow it, or end in an error of its own
        if inner.f_code.co_filename.startswith("<frozen importlib"):
            _end(number, frame)
        inner = inner.f_back
    _signal.signal(_signal.SIGINT, _end)  # if it is pressed again
    import threading

    late = threading.Timer(WAIT, _end, (number, None))
    late.daemon = True
    late.start()
    raise KeyboardInterrupt


def _end(number: int, frame: "FrameType | None") -> None:
    cli = sys.modules.get("edbl.cli.stopping")
    if not getattr(cli, "told", False):
        os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _unraisable(swallowed: "Any") -> None:
    """End the command if Ctrl-C came where an error is told and forgotten, such as in what C calls of Python."""
    if swallowed.exc_type is KeyboardInterrupt:
        _end(_signal.SIGINT, None)
    sys.__unraisablehook__(swallowed)


if __name__ == "__main__":
    start()
