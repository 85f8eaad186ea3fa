"""What the server takes at most, and how long it waits: one place for all such numbers."""

from dataclasses import dataclass

MB = 2**20


@dataclass(frozen=True)
class Limits:
    """Bounds of requests; a test may set its own."""

    files: int = 64  # photos of a request
    file_bytes: int = 24 * MB  # a photo
    body_bytes: int = 96 * MB  # a request with photos
    text_bytes: int = MB  # any other request
    all_bytes: int = 512 * MB  # all requests that are being read or answered
    pixels: int = 25_000_000  # pixels that are decoded of a photo; a JPEG is scaled before
    requests: int = 512  # requests at a time
    connections: int = 1024  # connections
    streams: int = 32  # clients that listen to events
    ready: int = 16  # models whose tensors stay in memory, those that were used last
    held: int = 400  # photos of all models in memory, the last ones
    held_bytes: int = 96 * MB  # the same
    staged: int = 20_000  # photos that wait for an update
    name: int = 200  # characters of the name of a class or file
    head_seconds: float = 10.0  # seconds until the head of a request is there
    body_seconds: float = 20.0  # seconds until its body is there, beside what its size may take
    least_rate: int = 32 * 1024  # bytes that a client must send, and take, each second
    idle_seconds: float = 15.0  # seconds between two requests of a connection
    end_seconds: float = 60.0  # seconds that requests under way may take when the server ends
