"""examples/server.py in a process of its own, as the Dockerfile starts it: it answers, says what was wrong with a
request, is healthy by the Dockerfile's own check, and stops when it is told to."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork.artifacts.trust import generate_key, sign

pytest.importorskip("cryptography", reason="signatures need cryptography")

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "examples" / "server.py"


class Served:
    """A server that runs, and the model that it serves."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
        rows = torch.export.Dim("rows", min=2, max=64)
        path = folder / "model.lamp"
        lampwork.export(self.model, (torch.randn(2, 4),), dynamic_shapes=({0: rows},), path=path)
        generate_key(folder / "release.pem")
        sign(path, folder / "release.pem")
        command = [sys.executable, SERVER, path, "--key", folder / "release.pub.pem", "--port", "0"]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": "/nowhere"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.fullmatch(r"serving .* on port (\d+)\n", said)
        assert found is not None, said
        self.address = f"http://127.0.0.1:{found[1]}"

    def ask(self, path: str, data: bytes | None = None) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.address + path, data, timeout=30) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.process.kill()
    made.process.wait()


def test_it_answers_many_at_a_time(served: Served) -> None:
    def one(rows: int) -> None:
        x = torch.randn(rows, 4)
        status, answer = served.ask("/predict", json.dumps({"inputs": {"input": x.tolist()}}).encode())
        assert status == 200
        torch.testing.assert_close(torch.tensor(answer["outputs"][0]), served.model(x).detach())

    assert served.ask("/health") == (200, {"status": "ok", "model": "Sequential"})
    assert served.ask("/model") == (200, {"inputs": {"input": "torch.float32"}})
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, [2, 3, 5, 7, 11, 13, 64, 2]))


@pytest.mark.parametrize(
    "path, data, status, says",
    [
        ("/predict", b"no json", 400, "expected JSON"),
        ("/predict", b"[]", 400, 'expected {"inputs"'),
        ("/predict", b'{"inputs": {"y": [[1]]}}', 400, "expected the inputs ['input'], came ['y']"),
        ("/predict", b'{"inputs": {"input": [["a"]]}}', 400, "expected nested lists of numbers"),
        ("/predict", b'{"inputs": {"input": [[1, 2], [3]]}}', 400, "expected nested lists of numbers"),
        ("/predict", b'{"inputs": {"input": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]}}', 400, "expected shape"),
        ("/nowhere", None, 404, "there are GET /health"),
        ("/nowhere", b"{}", 404, "there are GET /health"),
    ],
)
def test_wrong_requests(served: Served, path: str, data: bytes | None, status: int, says: str) -> None:
    came, answer = served.ask(path, data)
    assert came == status and says in answer["error"]
    assert served.ask("/health")[0] == 200


def test_a_body_that_nobody_reads_is_no_request(served: Served) -> None:
    host, port = served.address.removeprefix("http://").split(":")
    hidden = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: {len(hidden)}\r\n\r\n"
        connection.sendall(head.encode() + hidden)
        came = b""
        while part := connection.recv(4096):
            came += part
    assert came.count(b"HTTP/1.1") == 1 and came.startswith(b"HTTP/1.1 404") and b"Connection: close" in came


def test_it_is_healthy_as_the_dockerfile_checks_it(served: Served) -> None:
    found = re.search(r"HEALTHCHECK.*?CMD (\[[^\n]*\])", (ROOT / "Dockerfile").read_text(), re.S)
    assert found is not None
    command = json.loads(found[1])
    assert command[0] == "python"
    port = served.address.rpartition(":")[2]
    for code, status in (
        (command[2].replace(":8000/", f":{port}/"), 0),
        (command[2].replace(":8000/", ":1/"), 1),
    ):
        assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode == status


def test_a_file_that_is_not_signed_is_not_served(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = tmp_path / "bare.lamp", tmp_path / "k.pem"
    lampwork.export(served.model, (torch.randn(2, 4),), path=path)
    generate_key(key)
    monkeypatch.setattr(
        sys, "argv", ["server.py", str(path), "--key", str(tmp_path / "k.pub.pem"), "--port", "0"]
    )
    with pytest.raises(SystemExit, match="came no signature"):
        runpy.run_path(str(SERVER), run_name="__main__")


def test_it_stops_when_it_is_told_to(served: Served) -> None:
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=30) == 0
