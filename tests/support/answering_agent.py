"""An agent of one answer, for clients of its socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

GRANTED = {"clockMegahertz": 1005, "powerLimitMilliwatts": 250_000}


class Answering:
    """An agent that reads a request and answers as it is told to: bytes, or a function of the connection."""

    def __init__(self, path: Path, answer: bytes | Callable[[socket.socket], None]) -> None:
        self.bodies: list[dict[str, float]] = []
        self.calls = 0
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.calls += 1
                connection.settimeout(5)
                try:
                    _, _, body = connection.recv(65536).partition(b"\r\n\r\n")
                    if body:
                        self.bodies.append(json.loads(body))
                    if callable(self._answer):
                        self._answer(connection)
                    else:
                        connection.sendall(self._answer)
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
