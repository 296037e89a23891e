"""How to reach a cluster: the URL of the API server, its certificate authority, and credentials.

From a kubeconfig, as kubectl reads it, or from the ServiceAccount of the pod in which this process runs.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import json
import logging
import os
import ssl
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from blocklist.client.transport import BearerAuth, proxy_of
from blocklist.managers.command import run
from blocklist.managers.plan import ManagerError
from blocklist.model.errors import InvalidError
from blocklist.model.text import read_text

log = logging.getLogger("blocklist.managers")

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts token, authority and namespace of a pod's ServiceAccount."""
_DEFAULT_FILE: Final = Path("~/.kube/config")

Fields = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterAccess:
    """`namespace` is that of the pod, or of the context; `in_cluster` is whether this process runs in a pod.

    `context` is the name of the context, None in a pod. `digest` changes with the certificates and the credentials,
    but for tokens that are read from a file or a command.
    """

    url: str
    tls: ssl.SSLContext
    auth: httpx.Auth | None = None
    proxy: httpx.Proxy | str | None = None
    namespace: str = "default"
    in_cluster: bool = False
    context: str | None = None
    digest: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Certificates:
    """As text; None if there is none."""

    authority: str | None
    certificate: str | None = None
    key: str | None = None


def find_access(
    kubeconfig: Path | None, context: str | None, service_account: Path, environment: Mapping[str, str]
) -> ClusterAccess:
    """`kubeconfig`, else the files in KUBECONFIG, else the pod's ServiceAccount, else ~/.kube/config.

    Raises InvalidError if there is none, or it cannot be used.
    """
    if kubeconfig is not None:
        return _from_files([kubeconfig], context)
    if files := [Path(name) for name in environment.get("KUBECONFIG", "").split(os.pathsep) if name]:
        return _from_files(files, context)
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if host and context is None and (service_account / "token").exists():
        return _from_service_account(host, port, service_account)
    default = _DEFAULT_FILE.expanduser()
    if not default.exists():
        raise InvalidError(
            "Name the cluster: --kubeconfig FILE, or set KUBECONFIG. This process is not in a pod with a"
            f" ServiceAccount (no {service_account}/token), and there is no {default}."
        )
    return _from_files([default], context)


def _from_service_account(host: str, port: str, folder: Path) -> ClusterAccess:
    try:
        authority = _pem({"certificate-authority": "ca.crt"}, "certificate-authority", folder)
        certificates = _Certificates(authority=authority)
        tls = _tls(certificates)
        namespace = read_text(folder / "namespace").strip()
    except (OSError, ValueError) as error:
        raise InvalidError(f"The ServiceAccount in {folder} cannot be used: {error}.") from None
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    # No proxy: the API server of a pod is in its own network.
    return ClusterAccess(
        url=url,
        tls=tls,
        auth=FileToken(folder / "token"),
        namespace=namespace or "default",
        in_cluster=True,
        digest=_digest(certificates),
    )


def _from_files(files: Sequence[Path], context: str | None) -> ClusterAccess:
    configs = [(path, _read(path)) for path in files if path.exists()]
    if not configs:
        raise InvalidError(f"There is no kubeconfig {', '.join(map(str, files))}.")
    name = context or next((str(c["current-context"]) for _, c in configs if c.get("current-context")), None)
    if not name:
        raise InvalidError(f"{configs[0][0]} has no current-context: give --context NAME.")
    _, chosen = _named(configs, "contexts", "context", name)
    folder, cluster = _named(configs, "clusters", "cluster", str(chosen.get("cluster")))
    user_folder, user = _named(configs, "users", "user", str(chosen["user"])) if chosen.get("user") else (folder, {})
    if not str(cluster.get("server", "")).startswith(("https://", "http://")):
        raise InvalidError(f"The cluster {chosen.get('cluster')} in the kubeconfig has no URL of a server.")
    try:
        certificates = _Certificates(
            authority=_pem(cluster, "certificate-authority", folder),
            certificate=_pem(user, "client-certificate", user_folder),
            key=_pem(user, "client-key", user_folder),
        )
        tls = _tls(certificates, verify=not cluster.get("insecure-skip-tls-verify"))
    except (OSError, TypeError, ValueError) as error:
        raise InvalidError(f"The certificates of context {name} cannot be used: {error}.") from None
    url = str(cluster["server"]).rstrip("/")
    return ClusterAccess(
        url=url,
        tls=tls,
        auth=_auth(user, user_folder, cluster),
        proxy=cluster.get("proxy-url") or proxy_of(url),
        namespace=str(chosen.get("namespace") or "default"),
        context=name,
        digest=_digest(certificates, cluster, user),
    )


def _read(path: Path) -> Fields:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path} cannot be read: {error}.") from None
    try:
        body = json.loads(text) if text.lstrip().startswith("{") else _parse_yaml()(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidError(f"{path} is not a kubeconfig.")
    return body


def _parse_yaml() -> Callable[[str], object]:
    """Only for a kubeconfig in YAML: neither a pod nor the other managers need the library."""
    try:
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415
    except ImportError:
        raise InvalidError(
            "Reading a kubeconfig needs PyYAML: pip install 'blocklist[kubernetes]'. `kubectl config view --raw"
            " --output json` writes one that does not."
        ) from None

    def parse(text: str) -> object:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error

    return parse


def _named(configs: Sequence[tuple[Path, Fields]], kind: str, key: str, name: str) -> tuple[Path, Fields]:
    """The first entry with this name, and the folder to which its paths are relative."""
    for path, config in configs:
        entries = config.get(kind) or ()
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("name") == name:
                fields = entry.get(key) or {}
                if not isinstance(fields, dict):
                    raise InvalidError(f"{path} is not a kubeconfig: the {key} {name!r} has no fields.")
                return path.parent, fields
    raise InvalidError(f"The kubeconfig has no {key} {name!r}.")


def _tls(certificates: _Certificates, *, verify: bool = True) -> ssl.SSLContext:
    tls = ssl.create_default_context(cadata=certificates.authority)
    if not verify:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if certificates.certificate and certificates.key:
        _load_client_certificate(tls, certificates.certificate, certificates.key)
    return tls


def _digest(certificates: _Certificates, *fields: Fields) -> str:
    text = json.dumps([dataclasses.astuple(certificates), *fields], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _load_client_certificate(tls: ssl.SSLContext, certificate: str, key: str) -> None:
    """OpenSSL reads them from a file only; it is removed at once."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # Readable by this user only.
        file.write(f"{certificate}\n{key}\n")
        file.flush()
        tls.load_cert_chain(file.name)


def _pem(fields: Fields, name: str, folder: Path) -> str | None:
    """The text of a certificate or a key, which is given itself or as a file."""
    if data := fields.get(f"{name}-data"):
        try:
            return base64.b64decode(data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError(f"{name}-data is not base64") from None
    if not fields.get(name):
        return None
    path = folder / str(fields[name])
    if not (text := read_text(path)).strip():
        raise ValueError(f"{path} is empty")  # Without an authority, that of any website would do.
    return text


def _auth(user: Fields, folder: Path, cluster: Fields) -> httpx.Auth | None:
    if token_file := user.get("tokenFile"):
        return FileToken(folder / str(token_file))
    if user.get("token"):
        try:
            token = check_token(user["token"], "The token in the kubeconfig")
        except ManagerError as error:
            raise InvalidError(str(error)) from None
        return BearerAuth(lambda: token)
    if command := user.get("exec"):
        return CommandToken(command, folder, cluster)
    if user.get("auth-provider"):
        raise InvalidError("The kubeconfig uses an auth-provider, which Kubernetes has removed: use exec.")
    return None


# Tokens for the API server that change while this process runs.
#
# A pod's ServiceAccount has a token that the kubelet replaces before it expires (after an hour); a cloud's command
# makes one for minutes. A rejected token is read again at once. While it cannot be read again, the former one is
# used: it may be valid still. A token never appears in a repr, a log line or an error.

_FILE_SECONDS: Final = 60.0
"""A token from a file is read again after this time, as Kubernetes' own clients do."""
_COMMAND_TIMEOUT: Final = 60.0
_PATIENCE_SECONDS: Final = 1.0
"""How long a request waits for another token while it has one that may be valid still."""
_WAIT_SECONDS: Final = 15.0
"""How long a request waits for its first token, or for another one than was rejected; it fails then."""
_MARGIN_SECONDS: Final = 60.0
"""A token is replaced this long before it expires, or after half of the time that it has left."""
_KEEP_SECONDS: Final = 10.0
"""A token that could not be read again is used for this time before the next attempt."""


class TokenError(httpx.RequestError):
    """There is no token; the message is a sentence without it."""


def check_token(text: object, source: str) -> str:
    """The token without blanks around it. Raises ManagerError for what no header may have, which httpx would quote."""
    token = text.strip() if isinstance(text, str) else ""
    if not token or not token.isascii() or not token.isprintable():
        raise ManagerError(f"{source} is not a token.")
    return token


class RotatingToken(httpx.Auth):
    """Sends a token that is read again when it is old, and when it is rejected. Threads may share it.

    It is read in a thread of its own, once for all requests that wait: a command that hangs holds up none of them for
    longer than they would have waited for the API server.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading: threading.Thread | None = None
        self._token = ""
        self._fresh_until = 0.0
        self._failure = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """The requests that httpx sends. Raises TokenError if there is none."""
        sent = self._current(request)
        request.headers["Authorization"] = f"Bearer {sent}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and (token := self._current(request, sent)) != sent:
            request.headers["Authorization"] = f"Bearer {token}"
            yield request

    @abstractmethod
    def _read(self) -> tuple[str, float]:
        """The token, and the time (monotonic, in seconds) until which to use it. Raises ManagerError."""

    def _current(self, request: httpx.Request, rejected: str | None = None) -> str:
        with self._lock:
            usable = self._token if self._token != rejected else ""
            if usable and time.monotonic() < self._fresh_until:
                return usable
            if self._reading is None:
                self._reading = threading.Thread(target=self._refresh, name="blocklist-kubernetes-token", daemon=True)
                self._reading.start()
            reading = self._reading
        reading.join(_PATIENCE_SECONDS if usable else _WAIT_SECONDS)
        with self._lock:
            read = not reading.is_alive() and not self._failure
            if self._token and (read or self._token != rejected):
                return self._token
            failure = self._failure or f"There was no token within {_WAIT_SECONDS:g} s."
        raise TokenError(failure, request=request)

    def _refresh(self) -> None:
        token, fresh_until, failure = "", 0.0, ""
        try:
            token, fresh_until = self._read()
        except ManagerError as error:
            failure = str(error)
        except Exception as error:
            log.exception("The token cannot be read.")
            failure = f"The token cannot be read: {error!r}."
        with self._lock:
            self._reading = None
            if token:
                self._token, self._fresh_until = token, fresh_until
            elif self._token:
                self._fresh_until = time.monotonic() + _KEEP_SECONDS
                if failure != self._failure:
                    log.warning("%s The former token is used.", failure)
            self._failure = failure


class FileToken(RotatingToken):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _read(self) -> tuple[str, float]:
        try:
            text = read_text(self._path)
        except (OSError, UnicodeDecodeError) as error:
            raise ManagerError(f"The token {self._path} cannot be read: {error}.") from error
        return check_token(text, str(self._path)), time.monotonic() + _FILE_SECONDS


class CommandToken(RotatingToken):
    """The token that the command of a kubeconfig prints (client.authentication.k8s.io), as clouds have them."""

    def __init__(self, command: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]) -> None:
        """`folder` is the kubeconfig's: a command with a slash is relative to it. Raises InvalidError."""
        super().__init__()
        if not isinstance(command, dict) or not command.get("command"):
            raise InvalidError("The kubeconfig has an exec entry without a command.")
        word = str(command["command"])
        self._words = [str(folder / word) if "/" in word else word, *map(str, command.get("args") or ())]
        info = {
            "apiVersion": command.get("apiVersion", "client.authentication.k8s.io/v1"),
            "kind": "ExecCredential",
            "spec": {"interactive": False, **({"cluster": dict(cluster)} if command.get("provideClusterInfo") else {})},
        }
        try:
            given = {str(each["name"]): str(each["value"]) for each in command.get("env") or ()}
        except (KeyError, TypeError):
            raise InvalidError("The kubeconfig has an exec entry whose env is no list of names and values.") from None
        self._environment = {**given, "KUBERNETES_EXEC_INFO": json.dumps(info)}

    def _read(self) -> tuple[str, float]:
        output = run(self._words, timeout=_COMMAND_TIMEOUT, variables=self._environment, secret=True)
        try:
            status = json.loads(output.stdout)["status"]
            token = status["token"]
        except (ValueError, KeyError, TypeError):
            raise ManagerError(f"{self._words[0]} printed no token: client certificates are not supported.") from None
        fresh_seconds = _seconds_until(status.get("expirationTimestamp"))
        return check_token(token, f"What {self._words[0]} printed"), time.monotonic() + fresh_seconds


def _seconds_until(timestamp: object) -> float:
    """Until the token has to be replaced; without an end it is read again only when it is rejected."""
    if not isinstance(timestamp, str):
        return float("inf")
    try:
        end = datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return 0.0
    left = max(0.0, end - time.time())
    return left - min(_MARGIN_SECONDS, left / 2)
