"""What the server takes at most, and how long it waits: one place for all such numbers."""

from dataclasses import dataclass

MB = 2**20


@dataclass(frozen=True)
class Limits:
    """Bounds of requests; a test may set its own."""

    files: int = 64  # of a request
    file_bytes: int = 24 * MB
    body_bytes: int = 96 * MB  # of a request with files
    text_bytes: int = MB  # of any other
    all_bytes: int = 512 * MB  # of all requests that are being read
    pixels: int = 25_000_000  # that are decoded of a photo; a JPEG is scaled before
    requests: int = 512  # at a time
    connections: int = 1024
    streams: int = 32  # of events
    ready: int = 16  # models whose tensors stay in memory, those that were used last
    held: int = 400  # photos in memory, those that were asked about
    held_bytes: int = 96 * MB
    staged: int = 20_000  # photos that wait for an update
    name: int = 200  # characters of a class, or of a file
    head_seconds: float = 10.0  # until the head of a request is there
    body_seconds: float = 20.0  # until its body is there, beside the time that its bytes may take
    least_rate: int = 32 * 1024  # bytes a second that a client must send, and take
    idle_seconds: float = 15.0  # between two requests of a connection
    end_seconds: float = 60.0  # that what is under way may take once the server is told to end
