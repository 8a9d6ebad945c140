"""A local HTTP server that behaves, well or badly, like hosts of data sets."""
from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY = random.Random(0).randbytes(300_000)
MD5 = f"md5:{hashlib.md5(BODY, usedforsecurity=False).hexdigest()}"
SHA = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


class FileServer:
    """Serves `files` by name. `cut` ends a transfer after so many bytes; `requests` keeps (name,
    Range header)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.cut: int | None = None
        self.address = ""


@contextmanager
def serving():
    server = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            wanted = self.headers.get("Range")
            server.requests.append((name, wanted))
            if name not in server.files:
                self.send_error(404)
                return
            body = server.files[name]
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if start >= len(body) and start:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            self.wfile.write(body[start:][:server.cut])

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@contextmanager
def answering(*answers: bytes, pause: float = 0.0):
    """A host that sends these bytes, one answer a connection and the last again and again, whatever
    it is asked; with a pause, byte by byte. Yields its address and the requests it got."""
    requests: list[bytes] = []
    ended = threading.Event()

    def serve(listening: socket.socket) -> None:
        while not ended.is_set():
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    requests.append(connection.recv(65536))
                    answer = answers[min(len(requests), len(answers)) - 1]
                    for piece in ([answer] if not pause else [answer[i : i + 1] for i in range(len(answer))]):
                        if ended.is_set():
                            break
                        connection.sendall(piece)
                        time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
        finally:
            ended.set()
            thread.join(5)
