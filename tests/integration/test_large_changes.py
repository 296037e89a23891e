"""Changes of more than a tenth of the known nodes, or of more than 20, are asked about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.integration.bodies import current_list
from tests.integration.command import Command
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService

NODES: Final = 30
"""A tenth of them is three."""
BLOCK: Final = ("block", "-r", "disk", "-d", "1h")
CHANGES: Final = (BLOCK, ("drain", "--timeout", "1s"), ("extend", "-d", "2h"), ("unblock",))


@pytest.fixture
def service(start_in_process: StartInProcess, tmp_path: Path) -> InProcessService:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("id,labels\n" + "".join(f"n{number:02},rack=r{number % 5}\n" for number in range(NODES)))
    return start_in_process(nodes_file=str(nodes))


@pytest.fixture
def command(binaries: Path, service: InProcessService) -> Command:
    return Command(binaries, service.url)


def blocks(service: InProcessService) -> dict[str, object]:
    with service.client() as client:
        return dict(current_list(client)[1])


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
@pytest.mark.parametrize("nodes", [("n[01-04]",), ("n01", "n02", "n03", "n04"), ("-l", "rack=r1"), ("-",)])
def test_without_a_terminal_it_is_refused(
    service: InProcessService, command: Command, change: tuple[str, ...], nodes: tuple[str, ...]
) -> None:
    if change[0] in {"extend", "unblock"}:
        command.stdout_of(*BLOCK, "n[01-29]", "--yes")
    before = blocks(service)
    done = command.run(*change, *nodes, stdin="n01\nn02\nn03\nn04\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(
        r"changes [46] nodes \(n01, n0.*\), more than 3: a tenth of the known nodes, or 20\. ", done.stderr
    )
    assert "Nothing was changed: --yes is needed here, as there is no terminal to ask on." in done.stderr
    assert blocks(service) == before
    command.run(*change, *nodes, "--yes", stdin="n01\nn02\nn03\nn04\n")
    assert blocks(service) != before


@pytest.mark.parametrize(("answer", "done"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_on_a_terminal_it_asks(
    service: InProcessService, command: Command, monkeypatch: pytest.MonkeyPatch, answer: str, done: int
) -> None:
    monkeypatch.setattr("blocklist.cli.messages.is_interactive", lambda: True)
    asked = command.run(*BLOCK, "n[01-07]", stdin=answer)
    assert "7 nodes (n01, n02, n03, n04, n05, …), more than 3: a tenth of the known nodes, or 20. Block" in asked.stderr
    assert (asked.returncode, len(blocks(service))) == (done, 0 if done else 7)


def test_a_tenth_is_not_asked_about_nor_a_dry_run(service: InProcessService, command: Command) -> None:
    command.stdout_of(*BLOCK, "n[01-03]")
    assert command.stdout_of(*BLOCK, "n[04-20]", "--dry-run").count("would be blocked") == 17
    assert command.stdout_of("unblock", "n[01-03]", "n[04-20]", "--dry-run").count("would be unblocked") == 3
    assert len(blocks(service)) == 3


def test_without_known_nodes_only_twenty_count(start_in_process: StartInProcess, binaries: Path) -> None:
    command = Command(binaries, start_in_process().url)
    assert "21 nodes (n01, n02, n03, n04, n05, …), more than 20:" in command.run(*BLOCK, "n[01-21]").stderr
    command.stdout_of(*BLOCK, "n[01-20]")


@pytest.mark.parametrize(("count", "warns"), [(3, False), (4, True)])
def test_the_page_says_so_in_its_preview(service: InProcessService, command: Command, count: int, warns: bool) -> None:
    names = [f"n{number:02}" for number in range(1, count + 1)]
    command.stdout_of(*BLOCK, *names, "--yes")
    form = {"nodes": " ".join(names), "cause": "fan", "action": "mark", "ends": "never"}
    headers = {"Sec-Fetch-Site": "same-origin"}
    with service.client() as client:
        block = client.post("/page/block", data=form, headers=headers).text
        unblock = client.post("/page/selection", data={"node": names, "do": "unblock"}, headers=headers).text
    for preview in (block, unblock):
        assert f"{count} nodes?</title>" in preview.replace(" · blocklist", "")
        assert (f"These are {count} nodes: more than 3, a tenth of the known nodes or 20." in preview) is warns
