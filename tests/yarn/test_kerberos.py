"""The manager on a YARN that Kerberos secures: MIT's KDC, SPNEGO on the REST API, an administrator and a guest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.manager_process import ManagerProcess
from tests.integration.process import ServiceProcess
from tests.yarn.cluster import ADMINISTRATOR, YarnCluster
from tests.yarn.kerberos import Realm, kerberos_library
from tests.yarn.scene import EVACUATE, W1, Scene

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

TICKET_SECONDS: Final = 20


@pytest.fixture(scope="module")
def library() -> Path:
    return kerberos_library()


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with Realm(tmp_path_factory.mktemp("kerberos") / "kdc") as realm:
        yield realm


@pytest.fixture(scope="module")
def secured_yarn(
    yarn_jars: list[str], realm: Realm, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[YarnCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(library)
        for name, value in realm.client(ADMINISTRATOR).items():
            patch.setenv(name, value)
        folder = tmp_path_factory.mktemp("secured")
        with YarnCluster(folder, yarn_jars, nodes=2, realm=realm) as cluster:
            yield cluster


@pytest.fixture
def scene(tmp_path: Path, fresh: ServiceProcess, secured_yarn: YarnCluster) -> Scene:
    return Scene(tmp_path, fresh, secured_yarn)


def manager(scene: Scene, library: Path, variables: dict[str, str]) -> ManagerProcess:
    options = ("--resource-manager", scene.yarn.url, "--every", "1", "--kerberos")
    return ManagerProcess(scene.folder, scene.service.url, "yarn", *options, PYTHONPATH=str(library), **variables)


def test_it_logs_in_by_a_keytab_and_again_when_its_ticket_has_expired(
    scene: Scene, library: Path, realm: Realm
) -> None:
    variables = realm.client(ADMINISTRATOR, lifetime=f"{TICKET_SECONDS}s")
    variables["KRB5CCNAME"] += "-of-manager"
    with manager(scene, library, variables) as running:
        begun = time.monotonic()
        scene.block(W1)
        scene.wait_applied(W1)
        assert scene.labels() == {W1: "blocklist"}
        scene.unblock(W1)
        scene.wait(lambda: scene.labels() == {})
        scene.wait(lambda: time.monotonic() - begun > 2 * TICKET_SECONDS)
        scene.rest.submit()
        scene.wait_containers(1)
        [host] = [host for host, number in scene.rest.containers().items() if number]
        scene.block(host, EVACUATE)
        scene.wait_applied(host)
        assert scene.rest.containers()[host] == 0
        scene.unblock(host)
        scene.wait(lambda: scene.labels() == {})
        assert "401" not in running.log()


@pytest.mark.parametrize(
    ("principal", "reason"),
    [
        pytest.param(
            "", "GET /info with 401: Authentication required. Kerberos gave no login: run klist", id="no ticket"
        ),
        pytest.param("guest", "with 401: User guest not authorized", id="no administrator"),
    ],
)
def test_who_may_not_log_in_or_is_no_administrator_gets_a_reason(
    scene: Scene, library: Path, realm: Realm, principal: str, reason: str
) -> None:
    variables = realm.client(principal or "nobody")
    if not principal:
        variables["KRB5_CLIENT_KTNAME"] = str(scene.folder / "missing")
    with manager(scene, library, variables) as running:
        scene.block(W1)
        scene.wait(lambda: reason in running.log())
        assert running.log().count("context failed") == (not principal), "the library's own line, once"
        if principal:
            assert "must be an administrator of YARN (yarn.admin.acl)" in running.log()
        assert not scene.listener(W1)["applied"]
    scene.unblock(W1)
    assert scene.labels() == {}
