"""Rules come from options, else from a TOML file with the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from blocklist.detection.options import RuleSet, parser, read_rules, rule_set
from blocklist.detection.slowness import HOUR_MS, Rules
from blocklist.model.errors import InvalidError

ALL = """
alarm-rate = 0.001
max-share = 1
applications = 3
minutes = 0
hours = 1.5
group-label = "machine"
canary = true
[group]
small = ["w-1?", "w-20"]
"""


def rules_file(folder: Path, text: str) -> Path:
    file = folder / "rules.toml"
    file.write_text(text)
    return file


def test_a_file_has_the_names_of_the_options(tmp_path: Path) -> None:
    rules = Rules(
        alarm_rate=0.001, max_share=1, min_applications=3, min_span_ms=0, block_ms=3 * HOUR_MS // 2, canary=True
    )
    expected = RuleSet(rules=rules, groups=[("small", ["w-1?", "w-20"])], group_label="machine")
    assert read_rules(rules_file(tmp_path, ALL)) == expected
    options = ["--alarm-rate", "0.001", "--max-share", "1", "--applications", "3", "--minutes", "0", "--hours", "1.5"]
    options += ["--group", "small=w-1?,w-20", "--group-label", "machine", "--canary"]
    assert rule_set(parser().parse_args(["--event-logs", "/x", *options])) == expected


def test_an_option_takes_precedence_over_the_file(tmp_path: Path) -> None:
    file = rules_file(tmp_path, "minutes = 0\nhours = 2")
    found = rule_set(parser().parse_args(["--event-logs", "/x", "--rules", str(file), "--hours", "3"]))
    assert found.rules == Rules(min_span_ms=0, block_ms=3 * HOUR_MS)
    file.write_text("canary = true")
    found = rule_set(parser().parse_args(["--event-logs", "/x", "--rules", str(file), "--no-canary"]))
    assert found.rules == Rules()


def test_without_options_and_in_an_empty_file_the_defaults_count(tmp_path: Path) -> None:
    assert read_rules(rules_file(tmp_path, "")) == RuleSet() == rule_set(parser().parse_args(["--event-logs", "/x"]))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("alarm_rate = 0.1", "there is no rule 'alarm_rate'; perhaps alarm-rate."),
        ("speed = 1", "there is no rule 'speed'; the rules are alarm-rate, max-share, applications, minutes, hours,"),
        ("alarm-rate = 2", "alarm-rate must be a number above 0 and at most 1, not 2."),
        ("max-share = nan", "max-share must be a number above 0 and at most 1, not nan."),
        ("applications = 2.5", "applications must be an integer from 1 to 1000, not 2.5."),
        ("applications = 0", "applications must be an integer from 1 to 1000, not 0."),
        ("applications = true", "applications must be an integer from 1 to 1000, not True."),
        ("minutes = '6'", "minutes must be an integer from 0 to 10080, not '6'."),
        ("hours = 200", "hours must be hours, above 0 and at most 168, not 200."),
        ("canary = 1", "canary must be true or false, not 1."),
        ("trust-logs = 'yes'", "trust-logs must be true or false, not 'yes'."),
        ("group-label = 3", "group-label must be the name of a label, not 3."),
        ("group = 'small=w-1'", "group must have a list of hosts for each kind: small = ['w-1?', 'w-20']."),
        ("[group]\nsmall = []", "group must have a list of hosts for each kind"),
        ("[group]\nsmall = 'w-1'", "group must have a list of hosts for each kind"),
        ("hours = ", "is not TOML: "),
    ],
)
def test_what_a_file_must_not_contain_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    file = rules_file(tmp_path, text)
    with pytest.raises(InvalidError) as error:
        read_rules(file)
    assert str(error.value).startswith(str(file))
    assert sentence in str(error.value)


def test_a_file_in_another_encoding_is_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_bytes(b"group-label = '\xff'")
    with pytest.raises(InvalidError, match="is not TOML"):
        read_rules(file)
