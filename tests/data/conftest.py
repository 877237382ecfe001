"""A small server on this machine."""

import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest


@dataclass
class Server:
    """Serves what is put into it; other paths are not found."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """What is sent for each path."""
    announced: dict[str, int | None] = field(default_factory=dict)
    """The length to announce, where it is another than the true one."""


@pytest.fixture
def server() -> Iterator[Server]:
    answers = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in answers.files:
                self.send_error(404, "Not Found")
                return
            content = answers.files[self.path]
            length = answers.announced.get(self.path, len(content))
            self.send_response(200)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        answers.url = f"http://127.0.0.1:{served.server_address[1]}"
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield answers
        served.shutdown()
        thread.join()
