"""Certificates and credentials that are replaced while a manager runs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from blocklist import BlocklistClient
from blocklist.managers.kubernetes.api_server import ApiError, ApiServer
from blocklist.managers.kubernetes.cluster_access import find_access
from blocklist.managers.kubernetes.running import AccessReader
from tests.integration.manager_process import acked_revision
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster, make_authority, sign_certificate
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.manager import is_blocked, manager_process

pytestmark = pytest.mark.timeout(600)


class Kubeconfig:
    """A kubeconfig with names of files, which are replaced."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.path = folder / "config"
        self._cluster = cluster
        self.authority, self.certificate, self.key, self.token_file = (
            folder / name for name in ("ca.crt", "client.crt", "client.key", "token")
        )
        self.authority.write_text(cluster.ca.read_text())

    def write(self, **user: str) -> None:
        """Replace it, by a rename."""
        config = json.loads(self._cluster.kubeconfig(""))
        config["clusters"][0]["cluster"]["certificate-authority"] = str(self.authority)
        config["users"][0]["user"] = user
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(config))
        new.replace(self.path)

    def sign(self, folder: Path, authority: str) -> None:
        """A client certificate of an administrator, by this authority."""
        sign_certificate(folder, authority, "client", "/O=system:masters/CN=admin")
        for file in (self.certificate, self.key):
            file.write_text((folder / file.name).read_text())


@pytest.fixture
def kubeconfig(tmp_path: Path, cluster: Cluster) -> Kubeconfig:
    return Kubeconfig(tmp_path, cluster)


def connect(kubeconfig: Kubeconfig) -> ApiServer:
    reader = AccessReader(lambda context: find_access(kubeconfig.path, context, Path("/none"), {}))
    return ApiServer(reader.access, reader.replaced)


def is_answered(api: ApiServer) -> bool:
    with suppress(ApiError):
        return bool(api.get("/api/v1/nodes"))
    return False


def test_a_token_in_the_kubeconfig_is_replaced(kubeconfig: Kubeconfig, cluster: Cluster) -> None:
    kubeconfig.write(token="has-expired")
    with connect(kubeconfig) as api:
        with pytest.raises(ApiError, match="HTTP 401"):
            api.get("/api/v1/nodes")
        kubeconfig.path.unlink()
        assert not is_answered(api)
        kubeconfig.write(token=cluster.token)
        wait_until(lambda: is_answered(api))


def test_an_authority_is_replaced(kubeconfig: Kubeconfig, cluster: Cluster, tmp_path: Path) -> None:
    make_authority(tmp_path, "other")
    kubeconfig.authority.write_text((tmp_path / "other.crt").read_text())
    kubeconfig.write(token=cluster.token)
    with connect(kubeconfig) as api:
        with pytest.raises(ApiError, match="certificate verify failed"):
            api.get("/api/v1/nodes")
        text = cluster.ca.read_text()
        kubeconfig.authority.write_text(text[: len(text) // 3])
        assert not is_answered(api)
        kubeconfig.authority.write_text(text)
        wait_until(lambda: is_answered(api))


def test_a_client_certificate_is_replaced(kubeconfig: Kubeconfig, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    make_authority(tmp_path / "other", "other")
    kubeconfig.sign(tmp_path / "other", "other")
    files = {"client-certificate": str(kubeconfig.certificate), "client-key": str(kubeconfig.key)}
    kubeconfig.write(**files)
    with connect(kubeconfig) as api:
        with pytest.raises(ApiError, match="HTTP 401"):
            api.get("/api/v1/nodes")
        kubeconfig.sign(cluster.folder, "client-ca")
        wait_until(lambda: is_answered(api))


def test_a_manager_uses_a_kubeconfig_that_is_replaced(
    tmp_path: Path, cluster: Cluster, kubelets: Kubelets, fresh: ServiceProcess
) -> None:
    manager = manager_process(tmp_path, cluster, fresh)
    path = tmp_path / "kubernetes" / "kubeconfig"
    text = path.read_text()
    path.write_text(cluster.kubeconfig("has-expired"))
    with kubelets.nodes("replaced-77"), BlocklistClient(fresh.url) as client, manager:
        client.block("replaced-77", "Hot machine")
        wait_until(lambda: "HTTP 401" in manager.log())
        assert acked_revision(fresh, "kubernetes") < 1
        path.write_text(text[:100])
        wait_until(lambda: "is not a kubeconfig. The former credentials are used." in manager.log())
        path.write_text(text)
        wait_until(lambda: is_blocked(kubelets.node("replaced-77")), seconds=120)
        wait_until(lambda: acked_revision(fresh, "kubernetes") == 1)
