"""A stand-in for huggingface.co, for scripts: it has one repository with one file."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_FILES = [
    {"type": "file", "path": name, "size": 0, "oid": "0" * 40}
    for name in ("README.md", "model.gguf", "a-q4.gguf", "b-q4.gguf")
]


def serve(path: str) -> str:
    """Serve a file as ``owner/name/model.gguf``; the address."""
    data = Path(path).read_bytes()
    commit, digest = "c" * 40, hashlib.sha256(data).hexdigest()
    known = {f"/owner/name/resolve/{revision}/model.gguf" for revision in ("main", commit)}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.send_response(200 if self.path in known else 404)
            headers = {
                "X-Repo-Commit": commit,
                "X-Linked-Size": len(data),
                "X-Linked-Etag": f'"{digest}"',
                "ETag": f'"{digest}"',
                "Content-Length": len(data) if self.path in known else 0,
            }
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()

        def do_GET(self) -> None:
            if self.path.startswith("/api/models/owner/name/tree/main"):
                self._tell(_FILES)
                return
            self.do_HEAD()
            if self.path in known:
                self.wfile.write(data)

        def _tell(self, what: object) -> None:
            body = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
