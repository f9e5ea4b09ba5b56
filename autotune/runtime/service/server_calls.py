"""Asks a server of tables over HTTP: bounded times and sizes, no redirects, no proxies of the environment.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ...files import strict
from ...files.errors import DispatchError
from .signed_table import MAX_BYTES

SERVER, TOKEN = "AUTOTUNE_SERVER", "AUTOTUNE_SERVER_TOKEN"
TIMEOUT_S = 5.0  # of each step of an exchange
MAX_ANSWER_BYTES = 1 << 20
_NOTHING: Mapping[str, str] = MappingProxyType({})


class NoAnswer(DispatchError):
    """The server is not there, refuses, or answers what it should not."""


class Answer(NamedTuple):
    """Of a server. `tag`: of its content, for the next time."""

    status: int
    content: bytes
    tag: str

    def document(self) -> Any:
        """The JSON in it. Raises NoAnswer."""
        try:
            return strict.parse(self.content.decode())
        except ValueError as error:
            raise NoAnswer(
                f"the server's answer cannot be read ({error}); is it `autotune serve`?"
            ) from error


class ServerCalls:
    """A server by its URL, http:// or https://. Raises NoAnswer for any other."""

    def __init__(self, url: str, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # a port that is no number
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host or parts.username:
            raise NoAnswer(f"{SERVER} is {url!r}, no URL such as https://tune.example.com:8571; give one")
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._path, self._is_tls = parts.path.rstrip("/"), parts.scheme == "https"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._shown = f"{parts.scheme}://{parts.netloc}"

    def get(self, *path: str, most_bytes: int = MAX_ANSWER_BYTES, tag: str = "", **query: str) -> Answer:
        """What is at a path; 304, without content, if that still has the tag. Raises NoAnswer."""
        requested = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        headers = {"If-None-Match": tag} if tag else _NOTHING
        return self._ask(
            "GET", f"{_joined(path)}{'?' if requested else ''}{requested}", None, headers, most_bytes
        )

    def post(self, *path: str, content: bytes | dict[str, Any]) -> Answer:
        """Send JSON or bytes. Raises NoAnswer."""
        is_raw = isinstance(content, bytes)
        body = content if isinstance(content, bytes) else json.dumps(content, allow_nan=False).encode()
        kind = {"Content-Type": "application/octet-stream" if is_raw else "application/json"}
        return self._ask("POST", _joined(path), body, kind, MAX_ANSWER_BYTES)

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], most_bytes: int
    ) -> Answer:
        try:
            connection = self._connection()
            try:
                connection.request(method, f"{self._path}{path}", body, {**self._headers, **headers})
                return self._read(connection.getresponse(), most_bytes)
            finally:
                connection.close()
        except (OSError, HTTPException, ValueError) as error:  # ValueError: what a header may not hold
            raise NoAnswer(f"{self._shown} does not answer ({error}); is `autotune serve` up?") from error

    def _connection(self) -> HTTPConnection:
        if not self._is_tls:
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        context = ssl.create_default_context()
        return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)

    def _read(self, response: HTTPResponse, most_bytes: int) -> Answer:
        content = response.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise NoAnswer(f"{self._shown} answers with more than {most_bytes:,} bytes; it was not read")
        answer = Answer(response.status, content, response.getheader("ETag", ""))
        if response.status >= 300 and response.status not in (304, 404):
            text = content[:200].decode(errors="replace")
            raise NoAnswer(f"{self._shown} refuses ({response.status}): {text}")
        return answer


def fetch_files(calls: ServerCalls, address: str) -> tuple[bytes, bytes, bytes]:
    """The files of a table of a server, none checked. Raises NoAnswer."""
    found = [calls.get("tables", address, name, most_bytes=most) for name, most in MAX_BYTES.items()]
    if any(one.status != 200 for one in found):
        raise NoAnswer(f"the server has no table {address}")
    signed, table, cubins = (one.content for one in found)
    return signed, table, cubins


def _joined(path: tuple[str, ...]) -> str:
    return "/api/" + "/".join(quote(one, safe="") for one in path)
