"""May this request pass the gate? With the run's token: in the link, then by a cookie; or in a header, as programs send it."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Union
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

NAME = "token"  # of the parameter in a link, and of the field in the form


@dataclass(frozen=True)
class Pass:
    """It may; `path` is what to ask for behind the gate."""

    path: str


@dataclass(frozen=True)
class Enter:
    """It showed the token: it gets the cookie, and is sent to the same place without the token, which then stays in no history."""

    location: str
    cookie: str


@dataclass(frozen=True)
class Refuse:
    """It may not."""


Decision = Union[Pass, Enter, Refuse]


def decide(path: str, headers: Mapping[str, str], token: str, *, form: str = "") -> Decision:
    """What becomes of a request for a path with these headers, named in lower case; `form` is the body of a form that was filled in."""
    try:
        parts = urlsplit(path)
    except ValueError:  # such as http://[
        return Refuse()
    query = parse_qsl(parts.query, keep_blank_values=True)
    shown = [value for name, value in query if name == NAME] + [
        value for name, value in parse_qsl(form) if name == NAME
    ]
    if any(_same(value, token) for value in shown):
        left = urlencode([pair for pair in query if pair[0] != NAME])
        # Only the path: a link such as //elsewhere must not lead away from here.
        here = "/" + parts.path.lstrip("/\\")  # to browsers either slash is one
        return Enter(location=urlunsplit(("", "", here, left, "")), cookie=_cookie(token))
    if _cookie_shown(headers.get("cookie", ""), token) or _same(_in_header(headers.get("authorization", "")), token):
        return Pass(path=path)
    return Refuse()


def without_ours(cookies: str, token: str) -> str:
    """The cookies of a request, less the one that opens the gate: what is behind it need not see that."""
    return "; ".join(pair for pair in cookies.split("; ") if pair.partition("=")[0] != _cookie_name(token))


def _cookie(token: str) -> str:
    """Not the token itself; no script may read it, and no other site's form may send it."""
    return f"{_cookie_name(token)}={_ticket(token)}; Path=/; HttpOnly; SameSite=Lax"


def _cookie_name(token: str) -> str:
    """One for each run: browsers do not tell ports of one machine apart."""
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
    """`Bearer TOKEN`, or the password of `Basic`, whoever the user."""
    scheme, _, value = text.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:  # no base64, or no text
        return None


def _same(given: str | None, wanted: str) -> bool:
    """Compared in a time that says nothing of where they differ."""
    return bool(wanted) and given is not None and hmac.compare_digest(given.encode(), wanted.encode())
