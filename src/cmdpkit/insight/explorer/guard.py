"""Who may talk to the explorer: pages that it served itself, on the loopback address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LARGEST = 1_000_000
"""Bytes of a request at most."""


def own_hosts(port: int) -> frozenset[str]:
    """The names under which a browser on the same machine reaches the page."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


def guard(server: Any, port: int, hashes: Sequence[str]) -> None:
    """Refuse requests from elsewhere (403), and tell browsers to load nothing from elsewhere.

    A foreign Host is a name that was made to point here (DNS rebinding); a foreign Origin, or a request that the
    browser says comes from another site, is a page of somebody else.
    """
    from flask import abort, request

    hosts = own_hosts(port)
    origins = {f"http://{host}" for host in hosts}
    server.config["MAX_CONTENT_LENGTH"] = LARGEST

    @server.before_request  # type: ignore[untyped-decorator, unused-ignore]
    def refuse() -> None:
        if request.host not in hosts:
            abort(403, "this page is served to its own machine only")
        origin = request.headers.get("Origin")
        if origin is not None and origin not in origins:
            abort(403, "requests of other pages are refused")
        if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
            abort(403, "requests of other pages are refused")
        if request.method == "POST" and not request.is_json:
            abort(415, "requests must be JSON")

    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' {' '.join(hashes)}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )

    @server.after_request  # type: ignore[untyped-decorator, unused-ignore]
    def harden(response: Any) -> Any:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return response
