"""Load for `serve`: python load.py URL SHAPES [CLIENTS] [SECONDS], with bytes of random inputs.

    python load.py http://127.0.0.1:8080/models/resnet 1x3x224x224:float32 4 10

Each client sends one request after another on a connection of its own.
"""

from __future__ import annotations

import http.client
import random
import struct
import sys
import threading
import time
from urllib.parse import urlsplit

FORMS = {"float32": ("f", lambda: random.gauss(0, 1)), "int64": ("q", lambda: random.randrange(100))}


def body_of(inputs: str) -> tuple[bytes, str]:
    """The bytes of random inputs, and the header X-Shapes."""
    body, shapes = b"", []
    for each in inputs.split(","):
        shape, _, dtype = each.partition(":")
        count = 1
        for size in shape.split("x"):
            count *= int(size)
        letter, draw = FORMS[dtype or "float32"]
        body += struct.pack(f"<{count}{letter}", *(draw() for _ in range(count)))
        shapes.append(shape)
    return body, ",".join(shapes)


def main(url: str, inputs: str, clients: str = "4", seconds: str = "10") -> None:
    address = urlsplit(url)
    body, shapes = body_of(inputs)
    end = time.perf_counter() + float(seconds)
    times: list[float] = []
    failures: list[str] = []

    def call() -> None:
        try:
            send()
        except OSError as error:
            failures.append(str(error))

    def send() -> None:
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        headers = {"Content-Type": "application/octet-stream", "X-Shapes": shapes}
        while time.perf_counter() < end:
            begin = time.perf_counter()
            connection.request("POST", address.path, body, headers)
            response = connection.getresponse()
            content = response.read()
            times.append(time.perf_counter() - begin)
            if response.status != 200:
                failures.append(content.decode()[:200])
                return

    threads = [threading.Thread(target=call) for _ in range(int(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(failures[0])
    times.sort()
    at = [1e3 * times[min(len(times) - 1, int(part * len(times)))] for part in (0.5, 0.9, 0.99)]
    print(f"{len(times)} calls, {len(times) / float(seconds):.1f} a second; ms: ", end="")
    print("p50 {:.2f}, p90 {:.2f}, p99 {:.2f}".format(*at))


if __name__ == "__main__":
    main(*sys.argv[1:])
