"""Serve a .lamp file over HTTP, with nothing but Python's own server.

    python examples/server.py model.lamp --key release.pub.pem --port 8000
    curl -s localhost:8000/predict -d '{"inputs": {"x": [[1.0, 2.0, 3.0, 4.0]]}}'

POST /predict takes {"inputs": {name: nested lists}} and answers {"outputs": [nested lists...]}; GET /health answers 200
once the model has been run; GET /model says what its inputs are. The source of the model is not needed, nor a compiler.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch.utils import _pytree as pytree

import lampwork

LARGEST = 64 << 20
"""Bytes of a request that are read."""


class Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for them


class Refused(Exception):
    """A request that cannot be answered: the caller's mistake."""


class Handler(BaseHTTPRequestHandler):
    model: Any
    protocol_version = "HTTP/1.1"
    timeout = 5  # seconds that a connection may be silent

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200, {"status": "ok", "model": self.model.manifest.name})
        elif self.path == "/model":
            self.answer(200, {"inputs": {each.name: str(each.dtype) for each in inputs_of(self.model)}})
        else:
            self.answer(404, {"error": "there are GET /health, GET /model and POST /predict"})

    def do_POST(self) -> None:
        if self.path != "/predict":
            self.close_connection = (
                True  # else what nobody reads of this request would be taken for the next one
            )
            self.answer(404, {"error": "there are GET /health, GET /model and POST /predict"})
            return
        try:
            self.answer(200, {"outputs": predict(self.model, self.body())})
        except Refused as error:
            self.answer(400, {"error": str(error)})
        except lampwork.LampworkError as error:  # of the inputs: their number, names, types or sizes
            self.answer(400, {"error": error.cause, "code": error.code, "fix": error.fix})

    def body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST:
            self.close_connection = True
            raise Refused(f"expected a Content-Length of up to {LARGEST} bytes, came {length or 'none'}")
        try:
            return json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise Refused(f"expected JSON: {error}") from error

    def answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        print(format % args, file=sys.stderr, flush=True)


def inputs_of(model: Any) -> Any:
    return next(iter(model.manifest.entries.values())).inputs


def predict(model: Any, request: Any) -> list[Any]:
    """The outputs for inputs by name, as nested lists."""
    given = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(given, dict):
        raise Refused('expected {"inputs": {name: nested lists}}')
    dtypes = {each.name: each.dtype for each in inputs_of(model)}
    if given.keys() != dtypes.keys():
        raise Refused(f"expected the inputs {sorted(dtypes)}, came {sorted(given)}")
    try:
        tensors = {name: torch.tensor(value, dtype=dtypes[name]) for name, value in given.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise Refused(f"expected nested lists of numbers: {error}") from error
    with torch.no_grad():
        result = model(**tensors)
    return [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in pytree.tree_leaves(result)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="the .lamp file")
    parser.add_argument(
        "--key", action="append", help="run its code if this public key signed it; may come again"
    )
    parser.add_argument("--trust", action="store_true", help="run its machine code whoever made it")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, help="how many threads a request uses")
    given = parser.parse_args()
    try:
        Handler.model = lampwork.load(given.model, key=given.key, trust=given.trust, threads=given.threads)
    except lampwork.LampworkError as error:
        sys.exit(str(error))
    server = Server((given.host, given.port), Handler)
    for each in (signal.SIGTERM, signal.SIGINT):  # requests that have begun are answered
        signal.signal(each, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving {given.model} ({Handler.model.target}) on port {server.server_port}", flush=True)
    server.serve_forever()
    server.server_close()


if __name__ == "__main__":
    main()
