"""What a command leaves in its folder when it is killed, and what the same command makes of that.

``python benchmarks/left.py --seconds 60 -- python main.py ...``: run a command in this folder, end it by SIGKILL with
all that it has begun, and print the files that it made or changed. With ``--again`` the same is done once more right
after, which tells whether it continues or begins anew by what it prints.
"""

import argparse
import os
import signal
import subprocess
import time
from pathlib import Path


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of each file below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            stat = path.stat()
            found[path.relative_to(folder).as_posix()] = stat.st_size, stat.st_mtime_ns
    return found


def killed(command: list[str], folder: Path, seconds: float) -> dict[str, int]:
    """Run a command, kill it after some seconds, and return the sizes of the files that it has made or changed."""
    before = files(folder)
    process = subprocess.Popen(command, cwd=folder, start_new_session=True)
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    else:
        print(f"it ended by itself, with code {process.returncode}: give fewer --seconds")
    return {name: found[0] for name, found in files(folder).items() if before.get(name) != found}


def main() -> None:
    """Kill a command and print what it has left."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the command, before it is killed")
    parser.add_argument("--folder", type=Path, default=Path(), help="where it runs and writes")
    parser.add_argument("--again", action="store_true", help="do so twice")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    for _ in range(1 + given.again):
        left = killed(given.command, given.folder, given.seconds)
        print(f"left after {given.seconds:g} s and SIGKILL: {len(left)} files")
        for name, size in left.items():
            print(f"{size:>12,}  {name}")


if __name__ == "__main__":
    main()
