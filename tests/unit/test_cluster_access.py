"""Which cluster the Kubernetes manager uses, and with which token."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from blocklist.managers.kubernetes import cluster_access, running
from blocklist.managers.kubernetes.api_server import ApiError, ApiServer
from blocklist.managers.kubernetes.cluster_access import ClusterAccess, CommandToken, FileToken, TokenError, find_access
from blocklist.managers.kubernetes.running import AccessReader
from blocklist.model.errors import InvalidError

YAML = """\
apiVersion: v1
kind: Config
current-context: second
clusters:
- name: one
  cluster: {server: "https://10.0.0.1:6443", insecure-skip-tls-verify: true}
- name: two
  cluster:
    server: https://10.0.0.2:6443/
    certificate-authority: ca.pem
    proxy-url: http://proxy:3128
users:
- name: anna
  user: {tokenFile: token}
- name: robot
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./make-token
      args: [--cluster, two]
      env: [{name: PROFILE, value: ops}]
contexts:
- name: first
  context: {cluster: one, user: anna}
- name: second
  context: {cluster: two, user: robot, namespace: spark}
- name: broken
  context: {cluster: three, user: anna}
"""


JSON = json.dumps(
    {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.3"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate and its key, as text."""
    folder = tmp_path_factory.mktemp("authority")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "1"]
    subprocess.run([*command, "-keyout", "key.pem", "-out", "ca.pem"], cwd=folder, check=True, capture_output=True)
    return (folder / "ca.pem").read_text(), (folder / "key.pem").read_text()


@pytest.fixture
def kubeconfig(tmp_path: Path, authority: tuple[str, str]) -> Path:
    (tmp_path / "ca.pem").write_text(authority[0])
    (tmp_path / "token").write_text("anna-1\n")
    path = tmp_path / "config"
    path.write_text(YAML)
    return path


def find(
    kubeconfig: Path | None, context: str | None = None, folder: Path = Path("/none"), **env: str
) -> ClusterAccess:
    return find_access(kubeconfig, context, folder, env)


def sent_token(access: ClusterAccess, *statuses: int) -> list[str]:
    """The tokens that are sent, while the server answers with these statuses."""
    answers = iter([*statuses, 200])
    sent = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["Authorization"])
        return httpx.Response(next(answers))

    with httpx.Client(transport=httpx.MockTransport(answer), auth=access.auth) as client:
        client.get("https://10.0.0.1/")
    return sent


def test_the_current_context_counts_and_the_named_one_before_it(kubeconfig: Path) -> None:
    second, first = find(kubeconfig), find(kubeconfig, "first")
    assert (second.url, second.namespace, second.proxy) == ("https://10.0.0.2:6443", "spark", "http://proxy:3128")
    assert second.tls.verify_mode is ssl.CERT_REQUIRED
    assert [each["subject"] for each in second.tls.get_ca_certs()] == [((("commonName", "test"),),)]
    assert isinstance(second.auth, CommandToken)
    assert (first.url, first.tls.verify_mode) == ("https://10.0.0.1:6443", ssl.CERT_NONE)
    assert isinstance(first.auth, FileToken)
    assert not first.in_cluster


def test_the_file_of_the_option_counts_before_the_environment_and_that_before_the_pod(
    kubeconfig: Path, tmp_path: Path, authority: tuple[str, str]
) -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    for name, text in (("token", "t"), ("ca.crt", authority[0]), ("namespace", "blocklist\n")):
        (tmp_path / name).write_text(text)
    in_pod = find(None, None, tmp_path, **pod)
    assert (in_pod.url, in_pod.namespace, in_pod.in_cluster) == ("https://[fd00::1]:443", "blocklist", True)
    files = f"/none/config:{kubeconfig}"
    assert find(None, None, tmp_path, KUBECONFIG=files, **pod).url == "https://10.0.0.2:6443"
    assert find(kubeconfig, "first", tmp_path, KUBECONFIG="/none/config", **pod).url == "https://10.0.0.1:6443"


def test_a_kubeconfig_may_be_json_with_certificates_in_it(tmp_path: Path, authority: tuple[str, str]) -> None:
    def encoded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    user = {"client-certificate-data": encoded(authority[0]), "client-key-data": encoded(authority[1])}
    cluster = {"server": "https://10.0.0.3", "certificate-authority-data": encoded(authority[0])}
    config: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    access = find(tmp_path / "config")
    assert access.auth is None
    assert len(access.tls.get_ca_certs()) == 1
    cluster["certificate-authority-data"] = "not base64"
    (tmp_path / "config").write_text(json.dumps(config))
    with pytest.raises(InvalidError, match="certificate-authority-data is not base64"):
        find(tmp_path / "config")


@pytest.mark.parametrize(
    ("text", "context", "message"),
    [
        ("", None, "is not a kubeconfig"),
        ("{: [", None, "is not a kubeconfig"),
        ("{}", None, "has no current-context"),
        (YAML, "third", "has no context 'third'"),
        (YAML, "broken", "has no cluster 'three'"),
    ],
)
def test_what_is_wrong_is_said(kubeconfig: Path, text: str, context: str | None, message: str) -> None:
    kubeconfig.write_text(text)
    with pytest.raises(InvalidError, match=message):
        find(kubeconfig, context)


def test_a_kubeconfig_that_is_half_written_is_one_or_is_said_to_be_none(kubeconfig: Path) -> None:
    for length in range(YAML.index("users:"), len(YAML), 5):
        kubeconfig.write_text(YAML[:length])
        with suppress(InvalidError):
            find(kubeconfig)


def test_without_any_cluster_the_message_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidError, match="--kubeconfig FILE"):
        find(None)
    with pytest.raises(InvalidError, match="There is no kubeconfig"):
        find(tmp_path / "none")


def test_a_rejected_token_is_read_anew_from_its_file(kubeconfig: Path) -> None:
    access = find(kubeconfig, "first")
    assert sent_token(access) == ["Bearer anna-1"]
    (kubeconfig.parent / "token").write_text("anna-2")
    assert sent_token(access) == ["Bearer anna-1"], "it is not read at each request"
    assert sent_token(access, 401) == ["Bearer anna-1", "Bearer anna-2"]
    assert sent_token(access, 401) == ["Bearer anna-2"], "the same token is not tried twice"


def test_while_a_token_cannot_be_read_again_the_former_one_is_used_until_it_is_rejected(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_access, "_FILE_SECONDS", 0)
    access = find(kubeconfig, "first")
    assert sent_token(access) == ["Bearer anna-1"]
    (kubeconfig.parent / "token").unlink()
    assert sent_token(access) == ["Bearer anna-1"]
    with pytest.raises(httpx.RequestError, match="token cannot be read"):
        sent_token(access, 401)


@pytest.mark.parametrize("kind", ["token", "tokenFile", "exec"])
def test_what_is_no_token_is_never_shown(kubeconfig: Path, kind: str) -> None:
    secret = "secret-1\nsecret-2"
    script = kubeconfig.parent / "printer"
    script.write_text("#!/bin/sh\ncat <<'END'\n" + json.dumps({"status": {"token": secret}}) + "\nEND\n")
    script.chmod(0o755)
    (kubeconfig.parent / "token").write_text(secret)
    user = {"token": secret, "tokenFile": "token", "exec": {"command": "./printer"}}[kind]
    config = json.loads(JSON)
    config["users"][0]["user"] = {kind: user}
    kubeconfig.write_text(json.dumps(config))
    with pytest.raises((InvalidError, httpx.RequestError), match="is not a token") as raised:
        sent_token(find(kubeconfig))
    assert "secret" not in str(raised.value)


def test_what_a_command_is_given_and_prints_is_never_shown(kubeconfig: Path) -> None:
    script = kubeconfig.parent / "make-token"
    script.write_text("#!/bin/sh\necho secret-token; exit 3\n")
    script.chmod(0o755)
    with pytest.raises(httpx.RequestError, match="make-token --cluster two failed with exit code 3") as raised:
        sent_token(find(kubeconfig))
    assert "ops" not in str(raised.value)
    assert "secret-token" not in str(raised.value)


def test_the_digest_changes_with_certificates_and_credentials(kubeconfig: Path, authority: tuple[str, str]) -> None:
    before = find(kubeconfig)
    assert find(kubeconfig).digest == before.digest
    (kubeconfig.parent / "ca.pem").write_text(f"Renewed.\n{authority[0]}")
    renewed = find(kubeconfig)
    assert renewed.digest != before.digest
    kubeconfig.write_text(YAML.replace("value: ops", "value: dev"))
    assert find(kubeconfig).digest != renewed.digest
    (kubeconfig.parent / "ca.pem").write_text("\n")
    with pytest.raises(InvalidError, match=r"ca\.pem is empty"):
        find(kubeconfig)


def test_only_credentials_are_replaced_and_neither_the_context_nor_the_server(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(running, "_INTERVAL_SECONDS", 0)
    reader = AccessReader(lambda context: find(kubeconfig, context))
    assert reader.replaced() is None
    for text in (YAML[:200], YAML.replace("10.0.0.2", "10.0.0.9")):
        kubeconfig.write_text(text)
        assert reader.replaced() is None
        assert reader.replaced() is None
    assert len(caplog.messages) == 2
    assert "The former credentials are used." in caplog.messages[0]
    assert caplog.messages[1].startswith("The server of the cluster is https://10.0.0.9:6443 now: restart ")
    kubeconfig.write_text(YAML.replace("current-context: second", "current-context: first").replace("ops", "dev"))
    replaced = reader.replaced()
    assert replaced is not None
    assert (replaced.url, replaced.context) == ("https://10.0.0.2:6443", "second")
    assert reader.replaced() is None


def test_a_command_makes_a_token_that_is_kept_until_it_expires(kubeconfig: Path) -> None:
    script = kubeconfig.parent / "make-token"
    runs = kubeconfig.parent / "runs"
    script.write_text(
        f"""#!/bin/sh
echo "$PROFILE $@" >> {runs}
printf '{{"status": {{"token": "t%s", "expirationTimestamp": "%s"}}}}' "$(wc -l < {runs})" "$END"
"""
    )
    script.chmod(0o755)
    access = find(kubeconfig)
    assert sent_token(access) == ["Bearer t1"]
    # Without a time that can be read, it is not kept.
    assert sent_token(access) == ["Bearer t2"]
    assert runs.read_text().splitlines() == ["ops --cluster two"] * 2
    script.write_text("#!/bin/sh\necho '{}'")
    with pytest.raises(httpx.RequestError, match="printed no token"):
        sent_token(access, 401)


def test_a_token_for_seconds_is_kept_for_half_of_them(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = kubeconfig.parent / "make-token"
    runs = kubeconfig.parent / "runs"
    script.write_text(
        f"""#!/bin/sh
echo >> {runs}
printf '{{"status": {{"token": "t%s", "expirationTimestamp": "%s"}}}}' "$(wc -l < {runs})" "$END"
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("END", (datetime.now(UTC) + timedelta(seconds=50)).isoformat())
    access = find(kubeconfig)
    assert [*sent_token(access), *sent_token(access)] == ["Bearer t1", "Bearer t1"]
    monkeypatch.setenv("END", (datetime.now(UTC) - timedelta(seconds=1)).isoformat())
    assert sent_token(access, 401) == ["Bearer t1", "Bearer t2"]
    assert sent_token(access) == ["Bearer t3"], "one that has ended is not kept"


def test_clients_with_replaced_credentials_are_closed_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials for an hour must not cost memory for ever."""
    closed: list[httpx.Client] = []

    def close(client: httpx.Client) -> None:
        closed.append(client)

    monkeypatch.setattr(httpx.Client, "close", close)
    config = tmp_path / "config"
    config.write_text(JSON.replace("10.0.0.3", "127.0.0.1:1"))
    access = find_access(config, None, tmp_path, {})
    api = ApiServer(access, lambda: access)
    for _ in range(40):
        with pytest.raises(ApiError):
            api.get("/version")
    assert len(closed) == 2 * 10
    api.close()
    assert len({id(each) for each in closed}) == 2 * 41


def test_a_command_that_hangs_holds_up_no_request_that_has_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_access, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(cluster_access, "_COMMAND_TIMEOUT", 20.0)
    command = tmp_path / "login"
    answer = {"status": {"token": "first", "expirationTimestamp": "2020-01-01T00:00:00Z"}}
    command.write_text(f"#!/bin/sh\n[ -e {tmp_path}/hang ] && sleep 60\necho '{json.dumps(answer)}'\n")
    command.chmod(0o755)
    auth = CommandToken({"command": str(command)}, tmp_path, {})
    request = httpx.Request("GET", "https://10.0.0.1/")
    assert auth._current(request) == "first"
    (tmp_path / "hang").touch()
    monkeypatch.setattr(cluster_access, "_WAIT_SECONDS", 0.2)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: auth._current(request), range(8))) == {"first"}
    with pytest.raises(TokenError, match=r"There was no token within 0\.2 s\."):
        auth._current(request, rejected="first")
