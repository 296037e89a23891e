"""The file of nodes: what it may contain, faults with line and column, and when it is read again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from app.listeners.reports import InventoryUpdater, NodesFile
from blocklist.model.errors import InvalidError
from blocklist.model.inventory import Inventory
from blocklist.model.reported_node import MAX_FAULTS, make_reported_node, parse_nodes_file

GOOD: Final = "id,addresses,labels\nworker-7,10.0.0.7,rack=r12\n"


class Checked:
    """A file of nodes that is checked, and the inventory of its nodes."""

    def __init__(self, path: Path) -> None:
        self.inventory = Inventory()
        self.faulty = -1
        self.nodes_file = NodesFile(str(path), InventoryUpdater(self.inventory, len), self._count, list)

    def _count(self, faulty: int) -> None:
        self.faulty = faulty

    def check(self, times: int = 2) -> None:
        """Twice: a file that has changed is read once it has stayed the same."""
        for _ in range(times):
            asyncio.run(self.nodes_file.check())

    @property
    def nodes(self) -> list[str]:
        return list(self.inventory)

    @property
    def fault(self) -> str:
        """Empty if the file is in force."""
        fault = self.nodes_file.fault or ""
        assert bool(fault) == bool(self.faulty)
        return fault


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.csv"
    path.write_text(GOOD)
    return path


@pytest.fixture
def checked(file: Path) -> Checked:
    """The good file, which is read at the first look."""
    checked = Checked(file)
    checked.check(1)
    assert (checked.nodes, checked.fault) == (["worker-7"], "")
    return checked


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


SPOILED: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "removed": (Path.unlink, "No such file or directory"),
    "folder": (make_folder, "Is a directory"),
    "fifo": (make_fifo, "It is not a regular file"),
    "dangling link": (link_to("missing.csv"), "No such file or directory"),
    "link to itself": (link_to("nodes.csv"), "Too many levels of symbolic links"),
    "device": (link_to("/dev/zero"), "It is not a regular file"),
    "unreadable": (link_to("/proc/self/mem"), "Input/output error"),
    "empty": (lambda path: path.write_bytes(b""), "line 1: the header"),
    "not UTF-8": (lambda path: path.write_bytes(GOOD.encode() + b"n\xff\n"), "line 3: the text is not UTF-8."),
    "UTF-16": (lambda path: path.write_text(GOOD, encoding="utf-16"), "line 1: the text is not UTF-8."),
    "zeros": (lambda path: path.write_bytes(b"\0" * 4096), "line 1"),
    "a terabyte": (lambda path: os.truncate(path, 1 << 40), "the file is larger than 64 MiB."),
    "an id twice": (rename_over("id,addresses\nworker-7,10.0.0.7\nWORKER-7,10.0.0.8\n"), "line 3, column 1 (id)"),
    "unknown column": (rename_over("id,rack\nworker-7,r12\n"), "line 1: the header"),
}


@pytest.mark.parametrize(("spoil", "fault"), SPOILED.values(), ids=SPOILED)
def test_whatever_happens_to_the_file_the_last_good_one_stays_in_force_and_the_fault_is_reported(
    checked: Checked, file: Path, spoil: Callable[[Path], object], fault: str
) -> None:
    spoil(file)
    checked.check()
    assert checked.fault.startswith(f"{file}: {fault}")
    assert (checked.nodes, checked.inventory.labels_of("10.0.0.7")) == (["worker-7"], {"rack": "r12"})
    if file.is_dir():
        file.rmdir()
    rename_over("id\nworker-8\nworker-9\n")(file)
    checked.check()
    assert (checked.nodes, checked.fault) == (["worker-8", "worker-9"], "")


def test_a_file_that_is_still_being_written_is_not_taken_for_a_complete_one(checked: Checked, file: Path) -> None:
    complete = "".join(f"n{number}\n" for number in range(100))
    with file.open("w") as writing:
        for part in ("id\n", complete[:100], complete[100:]):
            writing.write(part)
            writing.flush()
            checked.check(1)
            assert checked.nodes == ["worker-7"]
    checked.check(1)
    assert len(checked.nodes) == 100


@pytest.mark.parametrize(
    "content",
    [b"\xef\xbb\xbfid,labels\r\nn1,rack=r1\r\nn2,rack=r1\r\n", b"ID,Labels\rn1,rack=r1\rn2,rack=r1"],
    ids=["byte order mark and CRLF", "CR, and no line end at the end"],
)
def test_what_spreadsheets_write_is_read(checked: Checked, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    checked.check()
    assert [checked.inventory.labels_of(name) for name in checked.nodes] == [{"rack": "r1"}] * 2


@pytest.mark.parametrize("content", [GOOD.replace("r12", "r13"), GOOD.replace("r12", "r1234")])
def test_a_change_is_noticed_even_if_the_time_of_the_file_is_kept(checked: Checked, file: Path, content: str) -> None:
    status = file.stat()
    file.write_text(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    checked.check()
    assert checked.inventory.labels_of("10.0.0.7") != {"rack": "r12"}


def test_the_file_may_give_further_names(checked: Checked, file: Path) -> None:
    file.write_text("id,names,addresses\nn7,worker-7.rack2;w7,10.0.0.7\n")
    checked.check()
    assert [checked.inventory.find(name) for name in ("w7", "worker-7.rack2", "10.0.0.7")] == ["n7"] * 3


FILE = """\ufeffid,addresses,labels
# The racks of the old hall.
worker-7,10.0.0.7 fd00::7,rack=r12;zone=z1

"worker-8","10.0.0.8;10.1.0.8","rack=r12 example.com/pool=batch"
worker-9
"""


def test_several_values_are_separated_by_spaces_or_semicolons() -> None:
    assert parse_nodes_file(FILE) == [
        make_reported_node("worker-7", (), ["10.0.0.7", "fd00::7"], {"rack": "r12", "zone": "z1"}),
        make_reported_node("worker-8", (), ["10.0.0.8", "10.1.0.8"], {"rack": "r12", "example.com/pool": "batch"}),
        make_reported_node("worker-9"),
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: the header"),
        ("name\nn1\n", "line 1: the header"),
        ("id,labels,rack\n", "line 1: the header"),
        ("id\nn 1\n", "line 2, column 1 (id)"),
        ("id,addresses\n\nn1,n2\n", "line 3, column 2 (addresses): 'n2' is not an IP address."),
        ("id,names,labels\nn1,a b_c!,x=1\n", "line 2, column 2 (names)"),
        ("id,labels\nn1,rack\n", "line 2, column 2 (labels): write 'rack' as key=value."),
        ("id,labels\nn1,rack=a/b\n", "line 2, column 2 (labels)"),
        ("labels,id\na=1 a=2,n1\n", "line 2, column 1 (labels): the label 'a' is given twice."),
        ("id\nn1\nN1\n", "line 3, column 1 (id): N1 is also in line 2."),
        ("id\nn1,10.0.0.1\n", "line 2, column 1 (id): there are 2 values, but 1 columns."),
        ('id\n"n1\n', "line 2"),
    ],
)
def test_a_fault_is_named_with_its_line_and_column(text: str, fault: str) -> None:
    with pytest.raises(InvalidError) as error:
        parse_nodes_file(text)
    assert error.value.detail.startswith(fault)


def test_the_first_faults_are_named() -> None:
    with pytest.raises(InvalidError) as error:
        parse_nodes_file("id\n" + "n 1\n" * 100)
    assert len(error.value.lines) == MAX_FAULTS
