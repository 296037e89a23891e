"""The parser and the comparison that the tests of pages rely on."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.server import sd_notify_ready
from tests.docs.console import Command, Event, parse_page
from tests.docs.output_match import matches, starts_with
from tests.docs.shell import Shell
from tests.integration.process import environment

TOKEN = "blocklist_5f0c9a21_" + "x" * 43


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("a blocked", "a blocked\n", True),
        ("", "", True),
        ("a  mark  2026-11-21T03:12:00Z", "a    mark  2027-01-02T00:00:00Z", True),
        ("until 2026-11-21 07:12:00 UTC (in 4h)", "until 2030-11-21 07:12:09 UTC (in 4h)", True),
        ('{"at":"1795261185072"}', '{"at":"1795999999999"}', True),
        ("Token 5f0c9a21 of anna", "Token 00000000 of anna", True),
        (TOKEN, TOKEN.replace("x", "y"), True),
        ('{"id":"a",…}', '{"id":"a","action":"MARK_BLOCKED"}', True),
        ("a\n…\nc", "a\nb1\nb2\nc", True),
        ("a\n…\nc", "a\nc", True),
        ("a\n…", "a\nb\nc", True),
        ("HTTP/1.1 200 OK\n…", "HTTP/1.1 200 OK\r\nx: y\r\n", True),
        ("a blocked", "b blocked", False),
        ("", "something", False),
        ("something", "", False),
        ("a\nb", "a\nb\nc", False),
        ("a…c", "a\nc", False),
        ("in 4h", "in 5h", False),
        ("a.c", "abc", False),
        ("revision 5", "revision 6", False),
        ("a\n…\nc", "a\nb", False),
    ],
)
def test_output_matches_the_page_or_not(expected: str, actual: str, same: bool) -> None:
    assert matches(expected, actual) is same


def test_output_so_far_matches_the_beginning() -> None:
    assert starts_with("a\nb", "a\nb\nc")
    assert not starts_with("a\nb", "a\n")


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


def test_a_page_is_parsed_into_steps(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    page = parse_page(tmp_path / "page.md")
    one, two, event, four = page.steps
    assert isinstance(one, Command)
    at = datetime.fromisoformat(one.text.removeprefix("one --at "))
    assert abs((at - datetime.now(UTC)).total_seconds() - 3600) < 600
    assert (one.expected, one.code, one.place) == ("seen", 0, "page.md:4")
    assert isinstance(two, Command)
    assert (two.text, two.expected, two.code) == ("two '{\n  }'   # exits 1", "", 1)
    assert event == Event("something")
    assert isinstance(four, Command)
    assert (four.expected, four.interrupt) == ("line", True)
    assert page.skipped == ["it would hurt"]


def test_the_shell_keeps_exported_variables_and_reports_mismatches(tmp_path: Path) -> None:
    shell = Shell(tmp_path, {"/page": str(tmp_path)}, environment(), cwd=tmp_path)
    assert shell.run("mkdir inner && cd inner && export NAME=value") == (0, "")
    assert shell.run("echo $NAME; pwd") == (0, "value\n/page/inner\n")
    assert shell.run("echo out; echo err >&2; false") == (1, "out\nerr\n")
    command = Command(place="page.md:1", text="echo a", expected="b", interrupt=False, code=0)
    assert "page.md:1" in shell.mismatch(command)
    endless = Command(place="", text="echo ready; tail -f /dev/null", expected="ready", interrupt=True, code=0)
    assert shell.mismatch(endless) == ""


def test_the_service_notifies_systemd_when_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a path, or at an abstract name."""
    for address, bound in ((str(tmp_path / "notify"), None), (f"@blocklist-{tmp_path}", f"\0blocklist-{tmp_path}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(bound or address)
            systemd.settimeout(30)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            sd_notify_ready()
            assert systemd.recv(64) == b"READY=1"
    sd_notify_ready()  # the socket is closed: no error
    monkeypatch.delenv("NOTIFY_SOCKET")
    sd_notify_ready()
