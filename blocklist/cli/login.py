"""login and logout: people get a token from the issuer of the service, by OAuth's device flow (RFC 8628).

The tokens are in a file that only its owner can read, one entry for each URL of a service, and are renewed when they
are used. They are sent to that service and to the issuer, to nobody else.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from blocklist.cli.environment import LOGINS, connect, contexts_path, replace_private_file, service
from blocklist.cli.output import print_lines, print_stderr
from blocklist.client.credentials import TokenFileError
from blocklist.model.errors import InvalidError, NotFoundError, UnauthorizedError, UnavailableError

if TYPE_CHECKING:
    import httpx

    from blocklist.client.transport import AbortableSocket
    from blocklist.wire.tokens import IssuerBody

_DEVICE: Final = "urn:ietf:params:oauth:grant-type:device_code"
_TIMEOUT: Final = 10.0
"""Maximum time in seconds of a whole answer of the issuer, however slowly it comes: other commands wait for it."""
_MAX_ANSWER: Final = 1024 * 1024
_EARLY: Final = 30.0
"""Seconds before its end at which a token is renewed: the clocks may differ."""
_MAX_INTERVAL: Final = 60
_AGAIN: Final = "run blocklist login"
Entry = dict[str, Any]
"""A log-in: issuer, clientId, audience, token, end (Unix seconds) and refreshToken."""


def login(
    issuer: Annotated[
        str | None, typer.Option(metavar="URL", help="The issuer, if the service has several.", show_default=False)
    ] = None,
) -> None:
    """Log in at the issuer of the service, in a browser on any machine. The token is kept, and renewed when needed."""
    with connect() as client:
        url, chosen = client.url, _choose(client.issuers(), issuer)
    _check_secure(chosen.issuer)
    asked = {"client_id": chosen.client_id}
    with _http(chosen.issuer) as http:
        endpoints = _discover(http, chosen.issuer)
        started = _post(http, _endpoint(endpoints, "device_authorization_endpoint"), {**asked, "scope": chosen.scope})
        if "device_code" not in started or "verification_uri" not in started:
            raise UnavailableError(f"{_host(chosen.issuer)} does not begin the log-in: {_reason(started)}.")
        _invite(url, started)
        tokens = _poll(http, _endpoint(endpoints, "token_endpoint"), asked, started)
    entry: Entry = {"issuer": chosen.issuer, "clientId": chosen.client_id, "audience": chosen.audience}
    with _logins(_path()) as logins:
        logins[url] = {**entry, **_kept(tokens, chosen.audience, None)}
    for variable in ("BLOCKLIST_TOKEN", "BLOCKLIST_TOKEN_FILE"):
        if os.environ.get(variable):
            print_stderr(f"{variable} is set, and is used instead of this log-in: unset it.")
    with connect() as client:
        identity = client.identity()
    print_lines(f"Logged in to {url} as {identity.name or 'somebody without a name'}, {identity.role}.")


def logout() -> None:
    """Forget the log-in at this service, and end it at its issuer."""
    url, _ = service()
    path = _path()
    entry = None
    if path.exists():
        with _logins(path) as logins:
            entry = logins.pop(url.rstrip("/"), None)
    if entry is None:
        raise NotFoundError(f"Nobody is logged in to {url} here.")
    with suppress(UnavailableError, TokenFileError), _http(entry["issuer"]) as http:
        revocation = _discover(http, entry["issuer"]).get("revocation_endpoint")
        if isinstance(revocation, str) and entry.get("refreshToken"):
            _check_secure(revocation)
            _post(http, revocation, {"client_id": entry["clientId"], "token": entry["refreshToken"]})
            print_lines(f"Logged out of {url}, and of {_host(entry['issuer'])}.")
            return
    print_lines(f"Logged out of {url} here. The log-in at {_host(entry['issuer'])} may go on.")


def saved_token(path: Path, url: str) -> Callable[[], str] | None:
    """What reads the token for this service, and renews it; None if nobody has logged in there. Raises InvalidError."""
    key = url.rstrip("/")
    return (lambda: _current(path, key)) if key in _read(path) else None


def _current(path: Path, url: str) -> str:
    """Raises TokenFileError if the log-in has ended, or its issuer cannot be asked."""
    entry = _read(path).get(url)
    if entry is not None and time.time() < entry["end"] - _EARLY:
        return str(entry["token"])
    with _logins(path) as logins:
        # Another command may have renewed it meanwhile.
        entry = logins.get(url)
        if entry is None:
            raise TokenFileError(f"You have logged out of {url}: {_AGAIN}")
        if time.time() >= entry["end"] - _EARLY:
            logins[url] = entry = {**entry, **_renewed(entry)}
        return str(entry["token"])


def _renewed(entry: Entry) -> Entry:
    if not entry.get("refreshToken"):
        raise TokenFileError(f"Your log-in at {_host(entry['issuer'])} has ended: {_AGAIN}")
    asked = {
        "grant_type": "refresh_token",
        "client_id": entry["clientId"],
        "refresh_token": entry["refreshToken"],
    }
    try:
        with _http(entry["issuer"]) as http:
            tokens = _post(http, _endpoint(_discover(http, entry["issuer"]), "token_endpoint"), asked)
    except UnavailableError as error:
        raise TokenFileError(f"Your token has expired and cannot be renewed: {error.detail}") from None
    if "access_token" not in tokens:
        raise TokenFileError(f"Your log-in at {_host(entry['issuer'])} has ended ({_reason(tokens)}): {_AGAIN}")
    return _kept(tokens, entry["audience"], entry["refreshToken"])


def _choose(issuers: list[IssuerBody], wanted: str | None) -> IssuerBody:
    if not issuers:
        raise InvalidError(
            "This service has no issuer for the command (BLOCKLIST_OIDC_COMMAND_CLIENT_ID): use a token, in"
            " BLOCKLIST_TOKEN_FILE."
        )
    if wanted is None and len(issuers) == 1:
        return issuers[0]
    known = ", ".join(each.issuer for each in issuers)
    if wanted is None:
        raise InvalidError(f"This service has several issuers: choose one of {known} with --issuer.")
    for each in issuers:
        if wanted.rstrip("/") in (each.issuer.rstrip("/"), _host(each.issuer)):
            return each
    raise InvalidError(f"{wanted!a} is no issuer of this service; it has {known}.")


def _invite(url: str, started: Mapping[str, Any]) -> None:
    """Name the service: its URL may come from a context or a script, and it gets the token."""
    where = started.get("verification_uri_complete") or started["verification_uri"]
    code = started.get("user_code", "")
    print_stderr(
        f"To log in to {url}, open this address in a browser, on any machine, and check that it shows the code {code}:"
    )
    print_stderr(f"  {where}")


def _poll(http: httpx.Client, url: str, asked: Mapping[str, str], started: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask until the person has logged in. Raises UnauthorizedError."""
    pause = min(_whole(started.get("interval"), 5), _MAX_INTERVAL)
    end = time.monotonic() + _whole(started.get("expires_in"), 600)
    fields = {**asked, "grant_type": _DEVICE, "device_code": str(started["device_code"])}
    while time.monotonic() < end:
        time.sleep(pause)
        try:
            answer = _post(http, url, fields)
        except UnavailableError:
            # As RFC 8628 says: wait longer.
            pause = min(2 * pause, _MAX_INTERVAL)
            continue
        match answer.get("error"):
            case None if "access_token" in answer:
                return answer
            case "authorization_pending":
                continue
            case "slow_down":
                pause += 5
            case _:
                raise UnauthorizedError(f"The issuer refuses the log-in: {_reason(answer)}.")
    raise UnauthorizedError("Nobody has logged in in time: run blocklist login again.")


def _kept(tokens: Mapping[str, Any], audience: str, refresh_token: str | None) -> Entry:
    """The token that the service accepts: the access token if it is for the service, else the ID token."""
    access, id_token = str(tokens.get("access_token", "")), tokens.get("id_token")
    for token in (access, str(id_token or "")):
        claims = _claims(token)
        audiences = claims.get("aud")
        meant = audience and audience in (audiences if isinstance(audiences, list) else [audiences])
        if claims and (meant or token != access or not id_token):
            end = _whole(claims.get("exp"), int(time.time()) + _whole(tokens.get("expires_in"), 60))
            return {"token": token, "end": end, "refreshToken": tokens.get("refresh_token") or refresh_token}
    raise UnauthorizedError("The issuer sent no JWT: the scope needs openid (BLOCKLIST_OIDC_SCOPE of the service).")


def _claims(token: str) -> Mapping[str, Any]:
    """What a JWT says of itself; the service verifies it."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**40 else default


# Requests to the issuer.


def _http(url: str) -> httpx.Client:
    """Raises InvalidError as `http_client` does."""
    from blocklist.client.transport import http_client  # noqa: PLC0415 - slow

    return http_client(url, _TIMEOUT)


def _check_secure(url: str) -> None:
    from blocklist.client.transport import is_loopback  # noqa: PLC0415 - slow

    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise InvalidError(f"The issuer {url} is not https: nobody should log in there.")


def _discover(http: httpx.Client, issuer: str) -> Mapping[str, Any]:
    found = _answer(http, "GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration", None)
    if str(found.get("issuer")).rstrip("/") != issuer.rstrip("/"):
        raise UnavailableError(f"The issuer {_host(issuer)} has the discovery document of another one.")
    return found


def _endpoint(endpoints: Mapping[str, Any], name: str) -> str:
    url = endpoints.get(name)
    if not isinstance(url, str):
        raise InvalidError(f"The issuer has no {name}: its client needs the device flow. Use a token instead.")
    _check_secure(url)
    return url


def _post(http: httpx.Client, url: str, fields: Mapping[str, str]) -> Mapping[str, Any]:
    return _answer(http, "POST", url, fields)


def _answer(http: httpx.Client, method: str, url: str, fields: Mapping[str, str] | None) -> Mapping[str, Any]:
    """The JSON object of an answer, also of a refusal; empty for none. Raises UnavailableError."""
    from blocklist.client.transport import TRANSPORT_ERRORS, AbortableSocket  # noqa: PLC0415 - slow

    connection = AbortableSocket()
    timer = threading.Timer(_TIMEOUT, connection.abort)
    timer.daemon = True
    timer.start()
    try:
        status, content = _exchange(http, method, url, fields, connection)
    except TRANSPORT_ERRORS as error:
        reason = f"no whole answer in {_TIMEOUT:g} s" if connection.aborted.is_set() else error
        raise UnavailableError(f"The issuer {_host(url)} is out of reach: {reason}") from None
    finally:
        timer.cancel()
    try:
        body = json.loads(content) if content else {}
    except (ValueError, RecursionError):
        body = None
    if status >= 500 or not isinstance(body, dict) or (status != 200 and not body):
        raise UnavailableError(f"The issuer {_host(url)} does not answer as one: status {status}")
    return body


def _exchange(
    http: httpx.Client, method: str, url: str, fields: Mapping[str, str] | None, connection: AbortableSocket
) -> tuple[int, bytes]:
    """Status and body. Raises TRANSPORT_ERRORS; UnavailableError for a body that is too large."""
    from blocklist.client.transport import read_at_most  # noqa: PLC0415 - slow

    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    traced = {"trace": connection.trace}
    # Not with the token of the service, which the environment may have.
    with http.stream(method, url, data=fields, headers=headers, auth=None, extensions=traced) as response:
        content = read_at_most(response, _MAX_ANSWER)
        if content is None:
            raise UnavailableError(f"The issuer {_host(url)} does not answer as one: more than {_MAX_ANSWER} bytes")
        return response.status_code, content


def _reason(answer: Mapping[str, Any]) -> str:
    words = (str(answer[name]) for name in ("error", "error_description") if name in answer)
    return ": ".join(word for word in words if word.isprintable()) or "without a reason"


def _host(url: str) -> str:
    return urlsplit(url).netloc


# The file.


def _path() -> Path:
    return contexts_path().with_name(LOGINS)


def _read(path: Path) -> dict[str, Entry]:
    """Raises InvalidError."""
    try:
        logins = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidError(f"{path} cannot be read ({error}): remove it, and {_AGAIN}.") from None
    if not isinstance(logins, dict):
        raise InvalidError(f"{path} is not a file of this command: remove it, and {_AGAIN}.")
    return logins


@contextmanager
def _logins(path: Path) -> Iterator[dict[str, Entry]]:
    """Change the file; one command at a time. Raises InvalidError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InvalidError(f"{path} cannot be written: {error.strerror}.") from None
    try:
        _wait_for(lock, path)
        before = _read(path)
        logins = dict(before)
        yield logins
        if logins != before:
            replace_private_file(path, json.dumps(logins, indent=1))
    finally:
        os.close(lock)


def _wait_for(lock: int, path: Path) -> None:
    """Raises InvalidError if the time of a request ends meanwhile, or the file system has no locks."""
    from blocklist.client.transport import TRANSPORT_ERRORS  # noqa: PLC0415 - slow

    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except TRANSPORT_ERRORS as error:
        raise InvalidError(
            f"{path} cannot be locked: {error}. If another command is renewing a log-in, its issuer is slow: try again."
        ) from None
