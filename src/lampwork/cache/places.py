"""Where entries are shared between machines: what fsspec serves (folders, object stores), and Redis."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol
from urllib.parse import urlsplit

from lampwork.config import PASSWORD
from lampwork.locks import importing
from lampwork.records import record

_NETWORK = {"connect_timeout": 2, "read_timeout": 2, "retries": {"max_attempts": 1}}


class NoPlace(Exception):
    """There is no such kind of place, or what serves it is not installed: args[0] is the reason, args[1] the fix."""


class Place(Protocol):
    """Bytes by name. Both methods may raise whatever what serves them raises."""

    def read(self, name: str) -> bytes | None:
        """What was written under a name; None if nothing was."""
        ...

    def write(self, name: str, content: bytes) -> None: ...


@record(eq=False)
class Files:
    """Below a URL of fsspec. `root` has to exist: a share that is not mounted is not filled."""

    system: Any
    root: str
    moves: bool

    def read(self, name: str) -> bytes | None:
        try:
            return self.system.cat_file(self._path(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        try:
            self._put(path, content)
        except FileNotFoundError:
            # Object stores have no folders; where there are some, the one with two letters is new.
            if not self.system.exists(self.root):
                raise
            self.system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._put(path, content)

    def _put(self, path: str, content: bytes) -> None:
        if not self.moves:
            self.system.pipe_file(path, content)
            return
        beside = f"{path}.{uuid.uuid4().hex}.new"
        try:
            self.system.pipe_file(beside, content)
            self.system.mv(beside, path)
        except BaseException:
            if self.system.exists(beside):
                self.system.rm_file(beside)
            raise

    def _path(self, name: str) -> str:
        return f"{self.root}/{name[:2]}/{name}"


@record(eq=False)
class Redis:
    """A server of Redis. How much it keeps, and what makes room, is its own setting."""

    client: Any

    def read(self, name: str) -> bytes | None:
        return self.client.get(f"lampwork:{name}")

    def write(self, name: str, content: bytes) -> None:
        self.client.set(f"lampwork:{name}", content)


def opener(url: str) -> Callable[[], Place]:
    """What opens the place of a URL, and may take its time over it.

    Raises:
        NoPlace: nothing that is installed serves it.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss"):
        client = _imported("redis", url).Redis
        password = os.environ.get(PASSWORD)
        given = {} if password is None else {"password": password}
        return lambda: Redis(client.from_url(url, socket_timeout=2, socket_connect_timeout=2, **given))
    core = _imported("fsspec.core", url)
    try:
        with importing:
            core.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:
        raise NoPlace(f"{url} cannot be used: {error}", _FIX) from error
    return lambda: _opened(core, url, scheme)


def _opened(core: Any, url: str, scheme: str) -> Files:
    is_s3 = scheme in ("s3", "s3a")
    options: dict[str, Any] = {"config_kwargs": _NETWORK} if is_s3 else {}
    # A process that was forked must not find what its parent has open.
    system, root = core.url_to_fs(url, skip_instance_cache=True, **options)
    if is_s3:
        system.connect()
    return Files(system, root.rstrip("/"), scheme in ("file", "local"))


_FIX = 'run `pip install "lampwork[remote]"` for s3:// and redis://, and the package that fsspec names for others'


def _imported(name: str, url: str) -> Any:
    with importing:
        try:
            return import_module(name)
        except ImportError as error:
            raise NoPlace(f"{url} cannot be used: {error}", _FIX) from error
