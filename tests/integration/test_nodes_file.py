"""BLOCKLIST_NODES_FILE: nodes that nobody reports; read again when the file changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest
from structlog.testing import capture_logs

from app.listeners.inventory import CHECK_SECONDS
from tests.integration.bodies import block
from tests.integration.conftest import StartInProcess, StartReplicas
from tests.integration.in_process import InProcessService
from tests.integration.process import wait_until

GOOD: Final = "id,addresses,labels\nworker-7,10.0.0.7,rack=r12\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.csv"
    path.write_text(GOOD)
    return path


@pytest.fixture
def service(start_in_process: StartInProcess, file: Path) -> InProcessService:
    """A service that has read the good file."""
    service = start_in_process(nodes_file=str(file))
    assert total(service.client()) == 1
    return service


def wait_faulty(client: httpx.Client, until: Callable[[Callable[[], bool]], None]) -> None:
    """Wait until the service has seen the fault. Only then do two requests have to agree."""
    until(lambda: "cannot be used" in client.get("/readyz").text)
    assert is_faulty(client)


def is_faulty(client: httpx.Client) -> bool:
    faulty = "cannot be used" in client.get("/readyz").text
    assert faulty == ("blocklist_nodes_file_faulty 1.0" in client.get("/metrics").text)
    return faulty


def total(client: httpx.Client) -> int:
    return int(client.get("/nodes").json()["total"])


def test_its_nodes_are_known_from_the_start_and_a_fault_leaves_them_in_force(
    service: InProcessService, file: Path
) -> None:
    client = service.client()
    node = client.get("/nodes/10.0.0.7").json()
    assert (node["id"], node["labels"], node["lastSeen"]) == ("worker-7", {"rack": "r12"}, None)
    assert node["reportedBy"] == [{"id": "file", "kind": "file", "lastSeen": None}]
    client.put("/blocklist/nodes/10.0.0.7", json=block())
    assert client.get("/blocklist/nodes/worker-7").json()["id"] == "10.0.0.7"
    with capture_logs() as logs:
        file.write_text("id,addresses,labels\nworker-7,10.0.0.7,rack=r12\nworker-8,worker-9,\n")
        wait_faulty(client, service.until)
        assert "line 3, column 2 (addresses)" in str(logs)
        assert (client.get("/readyz").status_code, total(client)) == (200, 1)
        file.unlink()
        service.until(lambda: "No such file" in str(logs))
        assert total(client) == 1
    file.write_text("id\nworker-8\nworker-9\n")
    service.until(lambda: total(client) == 2)
    assert client.get("/readyz").text == "ready\n"
    assert not is_faulty(client)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return link


def rename_over(content: str) -> Callable[[Path], None]:
    def rename(path: Path) -> None:
        path.with_suffix(".new").write_text(content)
        path.with_suffix(".new").rename(path)

    return rename


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        make_folder,
        make_fifo,
        link_to("missing.csv"),
        link_to("nodes.csv"),
        link_to("/dev/zero"),
        link_to("/proc/self/mem"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(GOOD.encode() + b"worker-8,10.0.0.8,rack=\xff\n"),
        lambda path: path.write_text(GOOD, encoding="utf-16"),
        lambda path: path.write_bytes(b"\0" * 4096),
        lambda path: os.truncate(path, 1 << 40),
        rename_over("id,addresses\nworker-7,10.0.0.7\nWORKER-7,10.0.0.8\n"),
        rename_over("id,rack\nworker-7,r12\n"),
    ],
    ids=[
        "removed",
        "folder",
        "fifo",
        "dangling link",
        "link to itself",
        "device",
        "unreadable",
        "empty",
        "not UTF-8",
        "UTF-16",
        "zeros",
        "a terabyte",
        "an id twice",
        "unknown column",
    ],
)
def test_whatever_happens_to_the_file_the_last_good_one_stays_in_force_and_the_fault_is_reported(
    service: InProcessService, file: Path, spoil: Callable[[Path], object]
) -> None:
    client = service.client()
    spoil(file)
    wait_faulty(client, service.until)
    assert client.get("/nodes/10.0.0.7").json()["labels"] == {"rack": "r12"}
    if file.is_dir():
        file.rmdir()
    rename_over("id\nworker-8\nworker-9\n")(file)
    service.until(lambda: total(client) == 2)
    assert not is_faulty(client)


def test_text_that_is_not_utf8_is_reported_with_its_line(service: InProcessService, file: Path) -> None:
    with capture_logs() as logs:
        file.write_bytes(b"id\nn1\nn\xff\n")
        wait_faulty(service.client(), service.until)
    assert "line 3: the text is not UTF-8." in str(logs)


def test_a_service_starts_with_a_file_that_cannot_be_read_and_says_so(
    start_in_process: StartInProcess, tmp_path: Path
) -> None:
    file = tmp_path / "nodes.csv"
    os.mkfifo(file)
    with capture_logs() as logs:
        client = start_in_process(nodes_file=str(file)).client()
    assert (is_faulty(client), total(client)) == (True, 0)
    assert "is not a regular file" in str(logs)


def test_a_file_that_is_still_being_written_is_not_taken_for_a_complete_one(
    service: InProcessService, file: Path
) -> None:
    client, complete = service.client(), "".join(f"n{number}\n" for number in range(100))
    with file.open("w") as writing:
        for part in ("id\n", complete[:100], complete[100:]):
            writing.write(part)
            writing.flush()
            for _ in range(3):
                service.clock.advance(CHECK_SECONDS / 4)
                assert total(client) == 1
    service.until(lambda: total(client) != 1)
    assert total(client) == 100


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbfid,labels\r\nn1,rack=r1\r\nn2,rack=r1\r\n", b"ID,Labels\rn1,rack=r1\rn2,rack=r1"],
    ids=["byte order mark and CRLF", "CR, and no line end at the end"],
)
def test_what_spreadsheets_write_is_read(service: InProcessService, file: Path, content: bytes) -> None:
    client = service.client()
    file.write_bytes(content)
    service.until(lambda: total(client) == 2)
    assert [node["labels"] for node in client.get("/nodes").json()["nodes"]] == [{"rack": "r1"}] * 2


@pytest.mark.parametrize("content", [GOOD.replace("r12", "r13"), GOOD.replace("r12", "r1234")])
def test_a_change_is_noticed_even_if_the_time_of_the_file_is_kept(
    service: InProcessService, file: Path, content: str
) -> None:
    client = service.client()
    status = file.stat()
    file.write_text(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    service.until(lambda: client.get("/nodes/10.0.0.7").json()["labels"] != {"rack": "r12"})


def test_an_address_of_two_ids_is_shown_as_ambiguous_and_belongs_to_neither(
    service: InProcessService, file: Path
) -> None:
    client = service.client()
    file.write_text("id,addresses\nn1,10.0.0.1 10.0.0.9\nn2,10.0.0.2;10.0.0.9\n")
    service.until(lambda: total(client) == 2)
    assert client.get("/nodes/n1").json()["conflicts"] == {"10.0.0.9": ["n2"]}
    assert client.get("/nodes/10.0.0.9").status_code == 409
    assert not is_faulty(client)


def test_the_file_may_give_further_names(service: InProcessService, file: Path) -> None:
    client = service.client()
    file.write_text("id,names,addresses\nn7,worker-7.rack2;w7,10.0.0.7\n")
    service.until(lambda: client.get("/nodes/w7").status_code == 200)
    assert client.get("/nodes/worker-7.rack2").json()["id"] == "n7"


@pytest.mark.databases("postgresql")
def test_each_replica_reads_its_own_copy(start_replicas: StartReplicas, file: Path) -> None:
    replicas = start_replicas(nodes_file=str(file))
    file.unlink()
    for client in replicas.clients:
        wait_faulty(client, wait_until)
        assert total(client) == 1
    file.write_text("id\nworker-8\nworker-9\n")
    for client in replicas.clients:
        wait_until(lambda client=client: total(client) == 2)  # type: ignore[misc]
