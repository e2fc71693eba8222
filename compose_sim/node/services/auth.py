"""Decide whether a request may pass the proxy: with the run's token in the link, then with a cookie, or in a header."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Union
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

NAME = "token"  # the parameter in a link, and the field in the form


@dataclass(frozen=True)
class Allow:
    """Forward the request."""

    path: str


@dataclass(frozen=True)
class SetCookie:
    """Set the cookie, and redirect to the same place without the token, which then stays in no browser history."""

    location: str
    cookie: str


@dataclass(frozen=True)
class Deny:
    """Refuse the request."""


Decision = Union[Allow, SetCookie, Deny]


def decide(path: str, headers: Mapping[str, str], token: str, *, form: str = "") -> Decision:
    """Decide about a request. `headers` have lower-case names; `form` is the body of a submitted form."""
    try:
        parts = urlsplit(path)
    except ValueError:  # such as http://[
        return Deny()
    query = parse_qsl(parts.query, keep_blank_values=True)
    shown = [value for name, value in query if name == NAME] + [
        value for name, value in parse_qsl(form) if name == NAME
    ]
    if any(_same(value, token) for value in shown):
        left = urlencode([pair for pair in query if pair[0] != NAME])
        # Only the path: a link to //elsewhere must not redirect to another host.
        here = "/" + parts.path.lstrip("/\\")  # browsers treat both slashes alike
        return SetCookie(location=urlunsplit(("", "", here, left, "")), cookie=_cookie(token))
    if _cookie_shown(headers.get("cookie", ""), token) or _same(_in_header(headers.get("authorization", "")), token):
        return Allow(path=path)
    return Deny()


def without_ours(cookies: str, token: str) -> str:
    """Return the cookies of a request without the proxy's own, which the program behind it need not see."""
    return "; ".join(pair for pair in cookies.split("; ") if pair.partition("=")[0] != _cookie_name(token))


def _cookie(token: str) -> str:
    """Return a cookie that does not contain the token, that no script can read, and that no form on another site sends."""
    return f"{_cookie_name(token)}={_ticket(token)}; Path=/; HttpOnly; SameSite=Lax"


def _cookie_name(token: str) -> str:
    """Return a name per run: browsers share cookies between all ports of a machine."""
    return f"composesim-{_digest(token, 'name')[:12]}"


def _ticket(token: str) -> str:
    return _digest(token, "gate")


def _digest(token: str, purpose: str) -> str:
    return hmac.new(token.encode(), f"composesim {purpose}".encode(), "sha256").hexdigest()


def _cookie_shown(text: str, token: str) -> bool:
    try:
        morsel = SimpleCookie(text).get(_cookie_name(token))
    except CookieError:
        return False
    return morsel is not None and _same(morsel.value, _ticket(token))


def _in_header(text: str) -> str | None:
    """Return the token in `Bearer TOKEN`, or the password in `Basic`, with any user name."""
    scheme, _, value = text.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:  # not base64, or not text
        return None


def _same(given: str | None, wanted: str) -> bool:
    """Compare in constant time."""
    return bool(wanted) and given is not None and hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
