"""How pages are read and compared: a test that takes everything for right would prove nothing."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.http.systemd import tell_ready
from tests.docs.console import Command, Happening, read
from tests.docs.shell import Shell
from tests.docs.shown import alike, begins_alike
from tests.integration.process import environment

TOKEN = "blocklist_5f0c9a21_" + "x" * 43


@pytest.mark.parametrize(
    ("page", "seen"),
    [
        ("a blocked", "a blocked\n"),
        ("", ""),
        ("a  mark  2026-11-21T03:12:00Z", "a    mark  2027-01-02T00:00:00Z"),
        ("until 2026-11-21 07:12:00 UTC (in 4h)", "until 2030-11-21 07:12:09 UTC (in 4h)"),
        ('{"at":"1795261185072"}', '{"at":"1795999999999"}'),
        ("Token 5f0c9a21 of anna", "Token 00000000 of anna"),
        (TOKEN, TOKEN.replace("x", "y")),
        ('{"id":"a",…}', '{"id":"a","action":"MARK_BLOCKED"}'),
        ("a\n…\nc", "a\nb1\nb2\nc"),
        ("a\n…\nc", "a\nc"),
        ("a\n…", "a\nb\nc"),
        ("HTTP/1.1 200 OK\n…", "HTTP/1.1 200 OK\r\nx: y\r\n"),
    ],
)
def test_alike(page: str, seen: str) -> None:
    assert alike(page, seen)


@pytest.mark.parametrize(
    ("page", "seen"),
    [
        ("a blocked", "b blocked"),
        ("", "something"),
        ("something", ""),
        ("a\nb", "a\nb\nc"),
        ("a…c", "a\nc"),
        ("in 4h", "in 5h"),
        ("a.c", "abc"),
        ("revision 5", "revision 6"),
        ("a\n…\nc", "a\nb"),
    ],
)
def test_not_alike(page: str, seen: str) -> None:
    assert not alike(page, seen)


def test_the_beginning() -> None:
    assert begins_alike("a\nb", "a\nb\nc")
    assert not begins_alike("a\nb", "a\n")


PAGE = """
<!-- it is 2026-11-21T03:12:00Z -->
```console
$ one --at 2026-11-21T04:12:00Z
seen
$ two '{
  }'   # exits 1
```
<!-- not run: it would hurt -->
```console
$ three
```
<!-- then: something -->

```console
$ four
line
^C
```
"""


def test_a_page(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    page = read(tmp_path / "page.md")
    one, two, happening, four = page.steps
    assert isinstance(one, Command)
    at = datetime.fromisoformat(one.text.removeprefix("one --at "))
    assert abs((at - datetime.now(UTC)).total_seconds() - 3600) < 600
    assert (one.shown, one.code, one.place) == ("seen", 0, "page.md:4")
    assert isinstance(two, Command)
    assert (two.text, two.shown, two.code) == ("two '{\n  }'   # exits 1", "", 1)
    assert happening == Happening("something")
    assert isinstance(four, Command)
    assert (four.shown, four.interrupted) == ("line", True)
    assert page.not_run == ["it would hurt"]


def test_the_shell_keeps_what_was_exported_and_says_what_differs(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"/page": str(tmp_path)}, environment(), cwd=tmp_path)
    assert shell.run("mkdir inner && cd inner && export NAME=value") == (0, "")
    assert shell.run("echo $NAME; pwd") == (0, "value\n/page/inner\n")
    assert shell.run("echo out; echo err >&2; false") == (1, "out\nerr\n")
    command = Command(place="page.md:1", text="echo a", shown="b", interrupted=False, code=0)
    assert "page.md:1" in shell.differs(command)
    endless = Command(place="", text="echo begun; tail -f /dev/null", shown="begun", interrupted=True, code=0)
    assert shell.differs(endless) == ""


def test_the_service_tells_systemd_that_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a path, or at a name that is in no file system."""
    for address, said in ((str(tmp_path / "notify"), None), (f"@blocklist-{tmp_path}", f"\0blocklist-{tmp_path}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(said or address)
            systemd.settimeout(30)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            tell_ready()
            assert systemd.recv(64) == b"READY=1"
    tell_ready()  # nobody is there any more: no harm done
    monkeypatch.delenv("NOTIFY_SOCKET")
    tell_ready()
