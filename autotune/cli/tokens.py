"""`autotune tokens`: who may ask a server for what."""

from __future__ import annotations

import secrets

from ..store import Store
from . import console
from .common import open_existing
from .requests import NewTokenRequest, RevokeRequest, TokensRequest

TOKEN_BYTES = 32


def new(request: NewTokenRequest, *, is_json: bool) -> None:
    """Make a token. Raises UsageError if the name is taken, StoreError."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with Store.open(request.db) as store:
        store.artifacts().add_token(request.name, token, request.roles)
    if is_json:
        console.show_json({"name": request.name, "token": token, "roles": request.roles})
        return
    console.show(token)
    console.note(f"of {request.name}, for {', '.join(request.roles)}; it is not shown again")


def show_all(request: TokensRequest, *, is_json: bool) -> None:
    """List names and roles. Raises StoreError."""
    with open_existing(request.db) as store:
        found = {name: sorted(roles) for name, roles in store.artifacts().tokens().values()}
    rows = [(name, ", ".join(roles)) for name, roles in found.items()]
    console.answer({"tokens": found}, lambda: console.table(("name", "roles"), rows), is_json=is_json)


def revoke(request: RevokeRequest, *, is_json: bool) -> None:
    """End a token. Raises UsageError if there is none of this name, StoreError."""
    with open_existing(request.db) as store:
        store.artifacts().revoke_token(request.name)
    if is_json:
        console.show_json({"revoked": request.name})
