"""The active one of several ResourceManagers, and the calls of its REST API that the manager needs."""

from __future__ import annotations

import importlib
import json
import logging
import re
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx

from blocklist.client.transport import TRANSPORT_ERRORS, AbortableSocket, proxy_of, read_at_most
from blocklist.managers.applications import Application, parse_yarn
from blocklist.managers.command import Stopping
from blocklist.managers.plan import ManagerError
from blocklist.managers.yarn.plan import (
    Capacity,
    YarnNode,
    YarnState,
    host_of,
    parse_masters,
    parse_nodes,
    parse_state,
)
from blocklist.model.errors import InvalidError
from blocklist.model.listener import MAX_APPLICATIONS

log = logging.getLogger("blocklist.managers")

# HTTP to one ResourceManager: the whole answer within a deadline, limited in size, with whatever credentials.

REQUEST_SECONDS: Final = 10.0
"""For a whole answer."""
_MAX_BYTES: Final = 256 * 1024 * 1024
"""About 100,000 nodes."""
_PATH: Final = "/ws/v1/cluster"
MAX_VERSION_LENGTH: Final = 50
_MAX_PAGE: Final = 4096
_TITLE: Final = re.compile("<title>(.+?)</title>", re.IGNORECASE | re.DOTALL)
# The ResourceManager may want the last one against requests that a browser was made to send.
_HEADERS: Final = {"Accept": "application/json", "X-XSRF-Header": "blocklist"}


class NoAnswerError(ManagerError):
    """A ResourceManager is down, a standby, or does not answer."""


class RejectedError(ManagerError):
    """A ResourceManager answered that it does not do this; `status` is that of HTTP, 0 if it was not in an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How to speak to a ResourceManager: as `user` where it believes names, with `auth` where it wants proof.

    `ca` is a file with the certificates of trusted authorities; None for those of the system. `system` and `path` are
    those of another server that answers in JSON.
    """

    user: str | None = None
    auth: httpx.Auth | None = None
    ca: Path | None = None
    system: str = "ResourceManager"
    path: str = _PATH

    def hint(self, request: str, status: int, reason: str) -> str:
        """What to do about a rejected request, with a blank before it; empty for another server than YARN's."""
        if self.path != _PATH:
            return ""
        # The ResourceManager answers 401, too, to a user that it knows, but who is no administrator.
        if status == 403 or "not authorized" in reason:
            return " The manager's user must be an administrator of YARN (yarn.admin.acl)."
        if status == 401 and self.auth is not None:
            return " Kerberos gave no login: run klist, then kinit, or name a keytab in KRB5_CLIENT_KTNAME."
        if status == 401:
            return " It wants a login: use --kerberos, after kinit, or --user."
        if status == 404 and request == "GET /info":
            return " Give the address of its web interface, such as http://rm:8088."
        return ""

    def client(self, url: str, seconds: float) -> httpx.Client:
        """Raises ManagerError if the file of authorities is not usable."""
        try:
            # Loading trusted certificates takes most of the time to create a client.
            plain = url.startswith("http://")
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ManagerError(f"The certificates in {self.ca} cannot be read: {error}.") from error
        params = {} if self.user is None else {"user.name": self.user}
        return httpx.Client(
            base_url=url + self.path,
            auth=self.auth,
            params=params,
            headers=_HEADERS,
            timeout=seconds,
            verify=verify,
            trust_env=False,
            proxy=proxy_of(url),
        )


class Connection:
    """To the ResourceManager at `url`. Errors name the URL and what was asked. Used by one thread at a time."""

    def __init__(self, url: str, access: Access, stop: Stopping, seconds: float = REQUEST_SECONDS) -> None:
        self.url = url
        self._name = f"The {access.system} {url}"
        self._access = access
        self._stop = stop
        self._seconds = seconds
        self._socket = AbortableSocket()
        self._client: httpx.Client | None = None

    def get(self, path: str, **params: str) -> Any:
        """The answer as JSON. Raises NoAnswerError and RejectedError."""
        return self._request("GET", path, params, None)

    def post(self, path: str, body: object, *, seconds: float | None = None) -> Any:
        """As `get`; None if the answer is empty. `seconds` replaces the deadline, and a stop does not end it then."""
        return self._request("POST", path, {}, body, seconds)

    def close(self) -> None:
        """Close it; the next request opens another one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _request(
        self, method: str, path: str, params: Mapping[str, str], body: object, seconds: float | None = None
    ) -> Any:
        if self._client is None:
            self._client, self._socket = self._access.client(self.url, self._seconds), AbortableSocket()
        client, connection = self._client, self._socket
        # Kept only after a whole answer: the rest of one that was given up must not reach another request.
        self._client = None
        stop, limit = (self._stop, self._seconds) if seconds is None else (Stopping(), seconds)
        try:
            status, headers, data = stop.call(
                lambda: _exchange(client, connection, method, path, params, body), limit, connection.abort
            )
        except (*TRANSPORT_ERRORS, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise NoAnswerError(f"{self._name} does not answer {method} {path}: {reason}.") from error
        self._client = client
        return self._parse(f"{method} {path}", status, headers, data)

    def _parse(self, request: str, status: int, headers: httpx.Headers, data: bytes) -> Any:
        if status in {301, 302, 303, 307, 308}:
            raise NoAnswerError(
                f"{self._name} is a standby, or has another URL: it redirects {request} to {headers.get('Location')}."
            )
        if status >= 400:
            self._raise_rejected(request, status, data)
        if not data.strip():
            return None
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise NoAnswerError(f"{self._name} answered {request} without JSON: {_text(data)}") from error

    def _raise_rejected(self, request: str, status: int, data: bytes) -> None:
        reason = _exception_message(data)
        if status in {502, 503, 504}:
            raise NoAnswerError(f"{self._name} answered {request} with {status}: {reason}.")
        hint = self._access.hint(request, status, reason)
        raise RejectedError(f"{self._name} rejected {request} with {status}: {reason}.{hint}", status)


def _exchange(
    client: httpx.Client,
    connection: AbortableSocket,
    method: str,
    path: str,
    params: Mapping[str, str],
    body: object,
) -> tuple[int, httpx.Headers, bytes]:
    content = None if body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    request = client.build_request(
        method,
        path,
        params=dict(params) or None,
        content=content,
        headers=headers,
        extensions={"trace": connection.trace, "timeout": client.timeout.as_dict()},
    )
    response = client.send(request, stream=True)
    try:
        data = read_at_most(response, _MAX_BYTES)
        if data is None:
            raise ValueError(f"the response is larger than {_MAX_BYTES >> 20} MiB")
        return response.status_code, response.headers, data
    finally:
        response.close()


def _exception_message(data: bytes) -> str:
    """What the ResourceManager, or the Jetty before it, says in its error, without the end of the sentence."""
    try:
        error = json.loads(data)
        text = str(error.get("RemoteException", error)["message"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        text = _text(data)
    return " ".join(text.split())[:300].rstrip(".") or "no reason"


def _text(data: bytes) -> str:
    """The beginning of an answer that is not JSON, in one line; of a page its title."""
    text = data[:_MAX_PAGE].decode(errors="replace")
    title = _TITLE.search(text)
    return " ".join((text if title is None else title[1]).split())[:200]


# SPNEGO, for a ResourceManager whose REST API wants Kerberos. Needs the extra `kerberos` of this package.

_LIBRARY_LOG: Final = "httpx_gssapi.gssapi_"


class _NewErrors(logging.Filter):
    """Lets the library report why there is no login in one line, and once: it does so twice for each request."""

    _last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = None
        last, self._last = self._last, record.getMessage()
        return last != self._last


def kerberos_auth() -> httpx.Auth:
    """Proves the identity of the ticket in the credentials cache, or of KRB5_CLIENT_KTNAME, a keytab.

    The ResourceManager must prove its own. Raises InvalidError if the library, or what it needs, is not installed.
    """
    try:
        library = importlib.import_module("httpx_gssapi")
    except ImportError as error:
        raise InvalidError(
            f"--kerberos needs the package httpx-gssapi, which cannot be loaded ({error}). Install it with pip install"
            " httpx-gssapi. The package gssapi, which it needs, has no builds for Linux and is compiled against the"
            " system's Kerberos: on Debian, apt-get install gcc python3-dev libkrb5-dev first."
        ) from error
    logging.getLogger(_LIBRARY_LOG).addFilter(_NewErrors())
    # Not opportunistic: once logged in by its cookie, the ResourceManager proves its identity no more.
    auth: httpx.Auth = library.HTTPSPNEGOAuth(mutual_authentication=library.REQUIRED)
    return auth


_EVERY_STATE: Final = "NEW,RUNNING,UNHEALTHY,DECOMMISSIONING,DECOMMISSIONED,LOST,REBOOTED,SHUTDOWN"
_ACTIVE_APPLICATIONS: Final = "ACCEPTED,RUNNING"
_SPARK_APPLICATIONS: Final = {
    "states": "RUNNING",
    "applicationTypes": "SPARK",
    "deSelects": "resourceRequests",
    # More than are reported, so that it is noticed if there are too many.
    "limit": str(2 * MAX_APPLICATIONS),
}
_LABELS_PER_REQUEST: Final = 1000
_QUEUE_SECONDS: Final = 10.0
"""How long to wait for the scheduler to take what it has been told."""
_POLL_SECONDS: Final = 0.05
_SETTLE_SECONDS: Final = 1.0
"""The same wait where the ResourceManager does not show its queue (before Hadoop 3.5)."""
_CAPACITY_SCHEDULER: Final = "capacityScheduler"
_NO_RIGHT: Final = frozenset({401, 403})


class ResourceManager:
    """`urls` are those of all ResourceManagers of one cluster; `seconds` the deadline of a request.

    A call goes to the active one; `find_active` must be called first, and after each error.
    """

    def __init__(self, urls: Sequence[str], access: Access, stop: Stopping, seconds: float) -> None:
        self._urls = urls
        self._access = access
        self._connections = [Connection(url, access, stop, seconds) for url in urls]
        self._active = self._connections[0]
        self.version = ""
        self._stop = stop
        self._seconds = seconds
        self._checked: object = None

    @property
    def url(self) -> str:
        """Of the active one."""
        return self._active.url

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def find_active(self) -> None:
        """Find the active one, beginning with the last. Raises NoAnswerError with what each answered.

        Raises RejectedError if node labels are disabled, its scheduler ignores them, or this user may not change them.
        """
        others = [connection for connection in self._connections if connection is not self._active]
        reasons = []
        standby = False
        for connection in [self._active, *others]:
            try:
                info = _fields(connection.get("/info"), "clusterInfo")
            except (NoAnswerError, RejectedError) as error:
                reasons.append(str(error))
                continue
            if info.get("haState") == "ACTIVE" and info.get("state", "STARTED") == "STARTED":
                self._active = connection
                self.version = str(info.get("hadoopVersion") or "")[:MAX_VERSION_LENGTH]
                self._check_labels((connection.url, info.get("startedOn")))
                return
            standby = info.get("haState") == "STANDBY"
            reasons.append(f"The ResourceManager {connection.url} is not active ({info.get('haState', 'no haState')}).")
        if standby and not others:
            reasons.append("Is there another one? Give --resource-manager for each.")
        raise NoAnswerError(" ".join(reasons))

    def read(self) -> YarnState:
        """All nodes and labels."""
        # In this order nothing is lost if somebody changes labels meanwhile: the label that is remembered is the one
        # that the node had last, and is known if it is new.
        node_labels = self._active.get("/get-node-to-labels") or {}
        nodes = self._active.get("/nodes", states=_EVERY_STATE)
        labels = self._active.get("/get-node-labels") or {}
        try:
            return parse_state(nodes, labels, node_labels)
        except ValueError as error:
            raise self._unexpected(error) from error

    def read_nodes(self) -> list[YarnNode]:
        """Raises NoAnswerError if there are none: so it answers after its restart."""
        try:
            nodes = parse_nodes(self._active.get("/nodes", states=_EVERY_STATE))
        except ValueError as error:
            raise self._unexpected(error) from error
        if not nodes:
            raise NoAnswerError(f"The ResourceManager {self.url} lists no nodes at all.")
        return nodes

    def read_masters(self) -> dict[str, list[str]]:
        """For each node, by id, the applications whose ApplicationMaster runs there."""
        answer = self._active.get("/apps", states=_ACTIVE_APPLICATIONS, deSelects="resourceRequests")
        try:
            return parse_masters(answer)
        except ValueError as error:
            raise self._unexpected(error) from error

    def read_applications(self) -> list[Application]:
        """The Spark applications that run, from whichever ResourceManager is active. Raises ManagerError.

        Any thread may call it: it has connections of its own.
        """
        failures = []
        for url in self._urls:
            connection = Connection(url, self._access, self._stop, self._seconds)
            try:
                return parse_yarn(connection.get("/apps", **_SPARK_APPLICATIONS))
            except NoAnswerError as error:
                # A standby redirects.
                failures.append(str(error))
            finally:
                connection.close()
        raise NoAnswerError(" ".join(failures))

    def add_labels(self, names: Iterable[str]) -> None:
        """Create exclusive labels; those that are there already stay."""
        if entries := [{"name": name, "exclusivity": "true"} for name in names]:
            self._post_labels(entries)

    def set_labels(self, labels: Mapping[str, str], *, seconds: float | None = None) -> None:
        """Replace the labels of hosts (`host:0`) and NodeManagers (`host:port`); an empty one removes it.

        `seconds` is the deadline of each request, and a stop does not end it then.
        """
        rest = iter(sorted(labels.items()))
        while batch := list(islice(rest, _LABELS_PER_REQUEST)):
            entries = [{"nodeId": node, "labels": [label] if label else []} for node, label in batch]
            self._active.post("/replace-node-to-labels", {"nodeToLabels": entries}, seconds=seconds)

    def set_host_labels(self, labels: Mapping[str, str], then_labels: Mapping[str, str]) -> None:
        """Replace `labels`, then `then_labels`: the label of a host replaces those of its NodeManagers.

        Once it has begun with a host it finishes with it, also when the manager is to stop. YARN 3.5 sorts the
        entries of a request, the host first, and applies them at once; for versions that do not,
        the second part is sent again.
        """
        hosts = {host_of(target) for target in then_labels}
        pairs = {target: label for target, label in labels.items() if host_of(target) in hosts}
        self.set_labels({target: label for target, label in labels.items() if target not in pairs})
        if then_labels:
            self.set_labels({**pairs, **then_labels}, seconds=self._seconds)
        if pairs:
            self.set_labels(then_labels, seconds=self._seconds)

    def set_capacity(self, node_id: str, capacity: Capacity, *, seconds: float | None = None) -> None:
        """Change the resources of a NodeManager: containers that no longer fit end at once."""
        further = [{"name": it.name, "units": it.unit, "value": it.value} for it in capacity.further]
        own = [
            {"name": "memory-mb", "units": "Mi", "value": capacity.megabytes},
            {"name": "vcores", "units": "", "value": capacity.vcores},
        ]
        resource: dict[str, Any] = {"memory": capacity.megabytes, "vCores": capacity.vcores}
        if further:
            resource["resourceInformations"] = {"resourceInformation": [*own, *further]}
        # 0: at once. For what only grows the timeout has no effect, and -1 is YARN's default.
        body = {"resource": resource, "overCommitTimeout": 0 if capacity.is_zero else -1}
        self._active.post(f"/nodes/{node_id}/resource", body, seconds=seconds)

    def wait_for_scheduler(self) -> None:
        """Wait until the scheduler has taken all that it was told before.

        Labels are changed at once, but the scheduler learns of it through two queues. Both must be empty twice in a
        row: in between, an event is in neither. Raises NoAnswerError if they are not empty in time.
        """
        deadline = time.monotonic() + _QUEUE_SECONDS
        empty = 0
        while True:
            metrics = _fields(self._active.get("/metrics"), "clusterMetrics")
            waiting = [metrics.get("rmEventQueueSize"), metrics.get("schedulerEventQueueSize")]
            if None in waiting:
                self._stop.sleep(_SETTLE_SECONDS)
                return
            empty = empty + 1 if waiting == [0, 0] else 0
            if empty == 2:
                return
            if time.monotonic() > deadline:
                raise NoAnswerError(
                    f"The scheduler of the ResourceManager {self.url} is behind: {waiting[0]} and {waiting[1]} events"
                    " are queued."
                )
            self._stop.sleep(_POLL_SECONDS)

    def _check_labels(self, start: object) -> None:
        """Once for each start of a ResourceManager, also while nothing is blocked. Raises RejectedError."""
        if start == self._checked:
            return
        answer = _fields(self._active.get("/scheduler"), "scheduler")
        scheduler = str(_fields(answer, "schedulerInfo").get("type", ""))
        if scheduler != _CAPACITY_SCHEDULER:
            raise RejectedError(
                f"The scheduler of the ResourceManager {self.url} ({scheduler}) is not the CapacityScheduler:"
                " it ignores node labels. The exec manager can keep YARN's exclude file instead."
            )
        try:
            # Changes nothing, but is rejected as a change would be.
            self._post_labels([])
        except RejectedError as error:
            # Another version may only want a label in it.
            if error.status not in _NO_RIGHT and not _is_disabled(error):
                log.debug("Whether labels may be set is not known: %s", error)
            else:
                raise
        self._checked = start

    def _post_labels(self, entries: Sequence[Mapping[str, str]]) -> None:
        try:
            self._active.post("/add-node-labels", {"nodeLabelInfo": entries})
        except RejectedError as error:
            if not _is_disabled(error):
                raise
            raise RejectedError(f"{error} Set yarn.node-labels.enabled in yarn-site.xml.", error.status) from error

    def _unexpected(self, error: ValueError) -> NoAnswerError:
        return NoAnswerError(f"The ResourceManager {self.url} gave an unexpected answer: {error}.")


def _is_disabled(error: RejectedError) -> bool:
    return "is disabled" in str(error) or "not enabled" in str(error)


def _fields(body: object, key: str) -> Mapping[str, Any]:
    found = body.get(key) if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}
