"""`python -m blocklist.detection backtest` over real logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blocklist import BlockAction
from blocklist.detection.__main__ import main
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import BlockedNode
from blocklist.wire.changes import change_body
from tests.detection.command import Command, DryRun
from tests.detection.synthetic_logs import STAGES

MINUTE = 60_000


def began(run: DryRun, number: int) -> int:
    """When the number-th application began, in Unix ms."""
    lines = (run.logs / f"app-{number}").read_text().splitlines()
    time: int = json.loads(lines[1])["Timestamp"]
    return time


def blocked(revision: int, node: str, at: int) -> str:
    block = BlockedNode(id=node, action=BlockAction.MARK_BLOCKED, start=at, end=at + 10 * MINUTE, cause="slow")
    change = Change(revision=revision, type=ChangeType.BLOCKED, at=at, node=block, created_by="anna")
    return json.dumps(change_body(change)) + "\n"


def test_two_sets_of_rules_and_the_change_log(proposed: DryRun, run_command: Command, tmp_path: Path) -> None:
    """Of three applications, the first set needs two, the second none: the slow host is of another kind."""
    quick, grouped, log = tmp_path / "quick.toml", tmp_path / "grouped.toml", tmp_path / "changes.jsonl"
    quick.write_text("minutes = 0\nhours = 2")
    grouped.write_text("minutes = 0\ngroup = {small = ['n3']}")
    second = began(proposed, 1)
    log.write_text(blocked(1, "n3", second - MINUTE) + blocked(2, "n4", second - MINUTE))
    arguments = ("backtest", "--event-logs", str(proposed.logs), "--rules", str(quick), "--against", str(grouped))
    code, out, err = run_command(*arguments, "--change-log", str(log), "--output", "json")
    assert code == 0, err
    assert "notes.txt is not an event log" in err
    found: dict[str, Any] = json.loads(out)
    assert (found["applications"], found["hosts"]) == (3, 6)
    first, other = found["rules"]
    assert (other["name"], other["blocks"], other["coreHoursSaved"]) == (str(grouped), [], 0)
    (block,) = first["blocks"]
    assert (block["node"], first["name"]) == ("n3", str(quick))
    assert second + 50_000 < block["start"] < second + 70_000, "when the second application had ended"
    assert second < block["end"] - 2 * 60 * MINUTE < block["start"], "from the latest evidence"
    # Of the third application: three tasks in each stage, of which the peers need less than half the time.
    assert block["coreHoursSaved"] == pytest.approx(3 * STAGES * 1.2 / 3600, rel=0.25)
    assert block["coreHoursCost"] == pytest.approx(0, abs=0.003)
    agreements = {it["node"]: (it["agreement"], it["differed"], it["applications"]) for it in found["actualBlocks"]}
    assert agreements == {"n3": ("agreed", 2, 2), "n4": ("contradicted", 0, 2)}


def test_the_table_is_for_people(proposed: DryRun, run_command: Command) -> None:
    code, out, _ = run_command("backtest", "--event-logs", str(proposed.logs), "--minutes", "0")
    head, _, summary, titles, row = out.splitlines()
    assert (code, head) == (0, "3 applications on 6 hosts.")
    assert summary.startswith("default rules: blocks: 1, nodes: 1, hours: 1.0, core-hours saved: 0.01, cost: 0.00")
    assert titles.split() == ["NODE", "FROM", "(UTC)", "UNTIL", "(UTC)", "HOURS", "SAVED", "COST", "EVIDENCE"]
    assert row.startswith("n3 ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rules", "{folder}/bad.toml"], "bad.toml: there is no rule 'minute'; perhaps minutes."),
        (["--against", "{folder}/bad.toml"], "bad.toml: there is no rule 'minute'; perhaps minutes."),
        (["--change-log", "{folder}/changes.jsonl"], "changes.jsonl, line 2 is not a change: "),
        (["--group-label", "machine"], "The group label 'machine' is one of the service's inventory: add --url URL."),
    ],
)
def test_a_usage_error_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text("minute = 3")
    (tmp_path / "changes.jsonl").write_text(blocked(1, "n3", MINUTE) + "{}\n")
    with pytest.raises(SystemExit) as ended:
        main(["backtest", "--event-logs", "/x", *(it.format(folder=tmp_path) for it in arguments)])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
