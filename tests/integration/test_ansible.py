"""deploy/ansible: the playbooks, run by ansible-playbook against a running service. A second run changes nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from blocklist.model.claims import Role
from tests.integration.conftest import StartInProcess
from tests.integration.databases import Databases
from tests.integration.listeners import put
from tests.integration.process import ROOT, environment, free_port
from tests.integration.secured import secured_in_process

FOLDER: Final = ROOT / "deploy" / "ansible"
_RECAP: Final = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=(\d+)", re.MULTILINE)


class Ansible:
    """ansible-playbook with an inventory of three hosts, two of them in the group rack_r12."""

    def __init__(self, folder: Path, url: str, token: str = "") -> None:
        self._inventory = folder / "inventory"
        self._inventory.write_text("[rack_r12]\nworker-1\nworker-2 blocklist_node=w2\n[other]\nworker-3\n")
        own = {"url": url} | ({"token": token} if token else {})
        self._environment = environment(**own) | {"ANSIBLE_HOME": str(folder / "ansible"), "ANSIBLE_NOCOLOR": "1"}

    def run(self, playbooks: str, *arguments: str) -> tuple[dict[str, tuple[int, int]], str]:
        """Run playbooks for the group: for each host the number of changes and of failures; and the output."""
        paths = [str(FOLDER / playbook) for playbook in playbooks.split()]
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *("-i", str(self._inventory), *paths, "-e", "target=rack_r12", *arguments),
            ],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        output = done.stdout + done.stderr
        found = {host: (int(changed), int(failed)) for host, changed, failed in _RECAP.findall(done.stdout)}
        assert found, output
        assert (done.returncode == 0) is all(failed == 0 for _, failed in found.values()), output
        return found, output


CHANGED: Final = {"worker-1": (1, 0), "worker-2": (1, 0)}
UNCHANGED: Final = {"worker-1": (0, 0), "worker-2": (0, 0)}
FAILED: Final = {"worker-1": (0, 1), "worker-2": (0, 1)}
BOTH: Final = pytest.mark.parametrize("playbook", ["block.yml", pytest.param("free.yml", marks=pytest.mark.long)])
"""Each start of Ansible takes seconds."""


def blocked(client: httpx.Client) -> dict[str, str]:
    return {name: node["cause"] for name, node in client.get("/blocklist").json().items()}


def test_a_group_is_blocked_and_freed_and_a_second_run_changes_nothing(tmp_path: Path, databases: Databases) -> None:
    """By an operator, whose token is not shown."""
    with secured_in_process(tmp_path, databases) as secured, secured.client(secured.admin) as client:
        token = secured.tokens[Role.OPERATOR]
        ansible = Ansible(tmp_path, secured.url, token)
        put(client, "w2", cause="disk")
        assert ansible.run("block.yml block.yml")[0] == CHANGED
        assert blocked(client) == {"worker-1": "Maintenance", "w2": "disk,Maintenance"}
        assert client.get("/blocklist").headers["blocklist-revision"] == "3"
        assert ansible.run("block.yml free.yml", "--check", "-e", "blocklist_cause='New disks'")[0] == UNCHANGED
        assert client.get("/blocklist").headers["blocklist-revision"] == "3"
        assert ansible.run("block.yml", "-e", "blocklist_cause='New disks'")[0] == CHANGED
        assert blocked(client) == {"worker-1": "New disks", "w2": "disk,New disks"}
        changed, output = ansible.run("free.yml free.yml", "-vvv")
        assert changed == CHANGED
        assert token not in output
        assert blocked(client) == {"w2": "disk"}, "what others claim stays"


def test_a_limit_stops_the_play_and_is_explained(start_in_process: StartInProcess, tmp_path: Path) -> None:
    service = start_in_process(max_blocked="1")
    hosts, output = Ansible(tmp_path, service.url).run("block.yml")
    assert sum(failed for _, failed in hosts.values()) == 1
    assert "The blocklist service answered 409: " in output


@BOTH
def test_a_dead_service_fails_and_is_named(tmp_path: Path, playbook: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    hosts, output = Ansible(tmp_path, url).run(playbook)
    assert hosts == FAILED
    assert f"The blocklist service at {url} does not respond: " in output


@BOTH
def test_a_wrong_token_fails_and_is_not_shown(tmp_path: Path, databases: Databases, playbook: str) -> None:
    token = "blocklist_00000000_" + "A" * 43
    with secured_in_process(tmp_path, databases) as secured:
        hosts, output = Ansible(tmp_path, secured.url, token).run(playbook, "-vvv")
    assert hosts == FAILED
    assert "The blocklist service answered 401: " in output
    assert token not in output
