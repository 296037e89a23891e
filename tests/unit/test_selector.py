"""Selectors: the same syntax and selection as Kubernetes' own package, and errors that name the position."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.errors import InvalidError
from blocklist.model.selector import (
    MAX_COMPARED,
    MAX_LENGTH,
    MAX_REQUIREMENTS,
    MAX_SUGGESTIONS,
    Operator,
    Requirement,
    Selector,
    check_label_key,
    check_label_value,
    parse_selector,
    unknown_keys,
)
from tests.unit.counting import count_calls

REFERENCE: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "selectors" / "cases.json").read_text(encoding="utf-8")
)
# Kubernetes rejects an even number of commas before the ")", but not an odd one.
COMMAS_AT_END: Final = re.compile(r",\s*,\s*\)")
NAME_RULE: Final = "must begin and end with a letter or digit, with letters, digits, '-', '_' and '.' between them"
PREFIX_RULE: Final = "must be a DNS name in lower case of at most 253 characters"

KEYS: Final = st.sampled_from(["rack", "zone", "in", "notin", "example.com/pool"])
VALUES: Final = st.sampled_from(["", "r1", "r2", "in", "A.b_c-d"])
LABELS: Final = st.dictionaries(KEYS, VALUES)
REQUIREMENTS: Final = st.one_of(
    st.builds(Requirement, key=KEYS, operator=st.sampled_from([Operator.EXISTS, Operator.NOT_EXISTS])),
    st.builds(
        Requirement,
        key=KEYS,
        operator=st.sampled_from([Operator.IN, Operator.NOT_IN]),
        values=st.frozensets(VALUES, min_size=1),
    ),
)
SELECTORS: Final = st.lists(REQUIREMENTS, max_size=5).map(lambda requirements: Selector(tuple(requirements)))


def selected(text: str) -> str | None:
    """A digit for each node of the reference; None if the selector is invalid."""
    try:
        selector = parse_selector(text)
    except InvalidError:
        return None
    return "".join("1" if selector.matches(labels) else "0" for labels in REFERENCE["nodes"])


def test_selects_what_kubernetes_selects_and_rejects_what_it_rejects() -> None:
    differing = [
        (text, expected, result)
        for text, expected in REFERENCE["cases"]
        if (result := selected(text)) != expected and not (expected is None and COMMAS_AT_END.search(text))
    ]
    assert differing == []
    assert sum(expected is None for _, expected in REFERENCE["cases"]) > 200
    assert sum("1" in (expected or "") for _, expected in REFERENCE["cases"]) > 500


@given(SELECTORS)
def test_a_selector_as_text_is_the_same_selector(selector: Selector) -> None:
    assert parse_selector(str(selector)) == selector


@given(SELECTORS, SELECTORS, LABELS)
def test_a_comma_means_and(left: Selector, right: Selector, labels: dict[str, str]) -> None:
    both = parse_selector(",".join(filter(None, (str(left), str(right)))))
    assert both.matches(labels) == (left.matches(labels) and right.matches(labels))


@given(KEYS, st.frozensets(VALUES, min_size=1), LABELS)
def test_notin_selects_exactly_what_in_does_not(key: str, values: frozenset[str], labels: dict[str, str]) -> None:
    listed = ",".join(sorted(values))
    positive, negative = parse_selector(f"{key} in ({listed})"), parse_selector(f"{key} notin ({listed})")
    assert negative.matches(labels) != positive.matches(labels)
    assert parse_selector(f"!{key}").matches(labels) != parse_selector(key).matches(labels)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_rejected_with_a_position(text: str) -> None:
    try:
        parse_selector(text)
    except InvalidError as error:
        position = re.match(r"selector, character ([0-9]+): ", error.detail)
        assert position is not None
        assert 1 <= int(position[1]) <= len(text) + 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rack=r1,", "character 9: expected the key of a label, or '!' and a key, found the end."),
        (",rack", "character 1: expected the key of a label, or '!' and a key, found ','."),
        ("rack r1", "character 6: expected '=', '==', '!=', 'in', 'notin', ',' or the end, found 'r1'."),
        ("rack=r1 zone=a", "character 9: expected ',' or the end, found 'zone'."),
        ("rack in r1", "character 9: expected '(', found 'r1'."),
        ("rack in (r1", "character 12: expected ',' or ')', found the end."),
        ("rack in (r1,=", "character 13: expected a value, ',' or ')', found '='."),
        ("rack=(r1)", "character 6: expected a value, found '('."),
        ("rack>5", "character 5: expected '=', '==', '!=', 'in', 'notin', ',' or the end, found '>'."),
        ("!rack=r1", "character 6: expected ',' or the end, found '='."),
        (
            "rack=-r1",
            f"character 6: the label value '-r1' {NAME_RULE}.",
        ),
        ("zone,rack=" + "r" * 64, f"character 11: the label value '{'r' * 64}' has more than 63 characters."),
        (
            "A.b/rack",
            f"character 1: the prefix of the label key 'A.b/rack' {PREFIX_RULE}.",
        ),
    ],
)
def test_an_error_names_the_position_and_what_was_expected(text: str, error: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_selector(text)
    assert caught.value.detail == f"selector, {error}"


def test_an_empty_selector_selects_everything() -> None:
    assert not parse_selector(" ")
    assert parse_selector("").matches({})


def test_length_and_number_of_requirements_are_limited() -> None:
    parse_selector(",".join(["rack"] * MAX_REQUIREMENTS))
    with pytest.raises(InvalidError, match="at most 32 requirements"):
        parse_selector(",".join(["rack"] * (MAX_REQUIREMENTS + 1)))
    with pytest.raises(InvalidError, match="at most 1,024 are allowed"):
        parse_selector("r" * (MAX_LENGTH + 1))


@pytest.mark.parametrize("key", ["rack", "a.b/c_d", "9", f"{'a' * 253}/{'b' * 63}"])
def test_a_valid_key_is_returned(key: str) -> None:
    assert check_label_key(key) == key


@pytest.mark.parametrize("key", ["", "/a", "a/", "a/b/c", "-a", "a ", "A/b", f"{'a' * 254}/b", "b" * 64, "rack\n"])
def test_an_invalid_key_is_rejected(key: str) -> None:
    with pytest.raises(InvalidError):
        check_label_key(key)


def test_a_value_may_be_empty_and_has_at_most_63_characters() -> None:
    assert check_label_value("") == ""
    assert check_label_value("v" * 63) == "v" * 63
    for value in ("v" * 64, "a b", "é", "a\n", "."):
        with pytest.raises(InvalidError):
            check_label_value(value)


def test_a_suggestion_costs_no_more_however_many_keys_are_known() -> None:
    """Otherwise one who reports many labels stops all others whenever somebody mistypes one."""
    known = {f"key-number-{number}" for number in range(10_000)}
    selector = parse_selector(",".join(f"!key-numbr-{number}" for number in range(30)))
    with_few = count_calls(lambda: unknown_keys(selector, set(sorted(known)[:MAX_COMPARED])))
    assert count_calls(lambda: unknown_keys(selector, known)) <= 2 * with_few
    found = unknown_keys(selector, known)
    assert list(found) == selector.keys
    assert [key in known for key in found.values()].count(True) == MAX_SUGGESTIONS


def test_unknown_keys_come_with_a_similar_known_key() -> None:
    selector = parse_selector("rak=r1,zone,colour!=red,rak!=r2")
    assert unknown_keys(selector, {"rack", "zone"}) == {"rak": "rack", "colour": None}
