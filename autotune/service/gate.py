"""What every request to a server passes: names that it answers to, origins, tokens and roles, sizes, rates.

A request is refused before anything of it is read but its head. Whoever asks from this machine alone needs no
token as long as there is none in the database; everybody else does.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from ..runtime.service.table_server import TOKEN
from ..store.artifacts import token_sum

READ, REQUEST, WORK, PUBLISH, NO_LANE = "read", "request", "work", "publish", ""
ROLES = (READ, REQUEST, WORK, PUBLISH)
_INCLUDED = {
    READ: {READ},
    REQUEST: {READ, REQUEST},
    WORK: {READ, REQUEST, WORK},
    PUBLISH: {READ, PUBLISH, WORK},
}
MAX_CLIENTS = 10_000  # whose rates are remembered
FAILURES_PER_S = 5.0  # wrong tokens from one address
MAX_HEAD_BYTES = 1 << 14
_SAFE = ("GET", "HEAD")


class Rejection(NamedTuple):
    """Of a request: an HTTP status, and why."""

    status: int
    reason: str


class Rates:
    """Token buckets: each client may ask so often a second, and twice as much at once. Of very many clients
    those of late are remembered."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._clock = per_s, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def may(self, client: str, *, counts: bool = True) -> bool:
        """Whether it may ask now; that is counted, or only looked at."""
        now, most = self._clock(), 2 * self._per_s
        left, at = self._left.pop(client, (most, now))
        left = min(most, left + (now - at) * self._per_s)
        is_open = left >= 1
        self._left[client] = (left - 1 if is_open and counts else left, now)
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return is_open


@dataclass(frozen=True)
class GateRules:
    """`names`: that the server is called by; empty: any. `is_open`: who asks from this machine needs no token
    while there is none. `per_s`: requests of one client."""

    names: frozenset[str]
    is_open: bool
    per_s: float = 500.0


class Gate:
    """Refuses, or says who asks. `tokens` has names and roles by the SHA-256 of each token."""

    def __init__(
        self,
        rules: GateRules,
        tokens: Callable[[], Mapping[str, tuple[str, frozenset[str]]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._tokens = rules, tokens
        self._rates, self._failures = Rates(rules.per_s, clock), Rates(FAILURES_PER_S, clock)

    def judge(self, scope: Scope, role: str, most_bytes: int) -> tuple[str, Rejection | None]:
        """Who asks, and why that is refused, if it is. `role`: what the route asks for."""
        headers, address = Headers(scope=scope), (scope.get("client") or ("?", 0))[0]
        if fault := self._fault_of_head(scope, headers, most_bytes):
            return address, fault
        who, rejection = self._known(headers, address, role)
        if rejection is None and not self._rates.may(who):
            rejection = Rejection(429, "too many requests; ask less often")
        return who, rejection

    def _fault_of_head(self, scope: Scope, headers: Headers, most_bytes: int) -> Rejection | None:
        host = headers.get("host", "")
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            return Rejection(431, "the head is too large")
        if self._rules.names and _name_of(host) not in self._rules.names:
            return Rejection(421, "this server has another name; `autotune serve --name` adds one")
        if scope["method"] not in _SAFE and not _is_own(headers, host):
            return Rejection(403, "a page of another site asks; it may not")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return Rejection(400, "the length of the body is no number")
        if int(length[:19]) > most_bytes:
            return Rejection(413, f"the body is larger than {most_bytes:,} bytes")
        return None

    def _known(self, headers: Headers, address: str, role: str) -> tuple[str, Rejection | None]:
        if role == NO_LANE:
            return address, None
        tokens = self._tokens()
        if self._rules.is_open and not tokens:
            return address, None
        if not self._failures.may(address, counts=False):
            return address, Rejection(429, "too many wrong tokens from this address")
        name, roles = tokens.get(token_sum(_token_of(headers)), ("", frozenset[str]()))
        if not name:
            self._failures.may(address)
            return address, Rejection(401, f"this needs a token, in {TOKEN}: `autotune tokens new` makes one")
        if not any(role in _INCLUDED.get(one, ()) for one in roles):
            return name, Rejection(403, f"the token of {name} has not the role {role}")
        return name, None


def _name_of(host: str) -> str:
    """Of a Host header: without its port, in small letters."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return name.strip("[]").lower()


def _is_own(headers: Headers, host: str) -> bool:
    """Whether what changes something does not come from a page of another site."""
    origin = headers.get("origin")
    is_own = origin is None or origin.lower().partition("://")[2] == host.lower()
    return is_own and headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _token_of(headers: Headers) -> str:
    """A token comes as such, or, from a browser, as the password of any user."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""
