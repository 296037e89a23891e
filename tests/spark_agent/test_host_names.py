"""The driver compares names as blocklist.model.names does."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklist.model.names import machine_keys, normalize_name, same_machine, short_name
from tests.length import longer
from tests.spark_agent.decisions import Decisions

_LABELS = st.sampled_from(["n1", "N1", "n2", "10", "a", "fe80", "n1-x", "_", ""])
names = st.one_of(
    st.lists(_LABELS, min_size=1, max_size=4).map(".".join),
    st.text(alphabet="nN1.:-[]%f0", min_size=1, max_size=12),
    st.from_regex(r"[A-Za-z0-9._:-]{1,20}", fullmatch=True),
    st.from_regex(r"\[?(0?[0-9]{1,3}\.){3}[0-9]{1,3}\]?", fullmatch=True),
    st.from_regex(
        re.compile(r"([0-9a-f]{0,4}:){2,7}([0-9a-f]{0,5}|1\.2\.3\.4)(%[a-z0-9]{0,3})?", re.IGNORECASE), fullmatch=True
    ),
    st.builds(str, st.builds(IPv4Address, st.integers(0, 2**32 - 1))),
    st.builds(lambda number, mask: IPv6Address(number & mask).exploded, *[st.integers(0, 2**128 - 1)] * 2),
    st.builds(lambda number: str(IPv6Address(number)).upper(), st.integers(0, 2**128 - 1)),
    st.builds(lambda number: f"[::ffff:{IPv4Address(number)}]", st.integers(0, 2**32 - 1)),
)


def keys_by_the_rules(name: str) -> list[str]:
    normal = normalize_name(name)
    short, dot = short_name(normal)
    return [normal, f"{short}."] if short and dot else [normal]


@settings(max_examples=longer(300))
@given(st.lists(names, min_size=1, max_size=20))
def test_a_host_is_looked_up_under_the_keys_of_its_name(decisions: Decisions, given_names: list[str]) -> None:
    assert decisions.keys(given_names) == [keys_by_the_rules(name) for name in given_names]


@pytest.mark.parametrize(
    "name",
    ["::", "::1", "1::", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:9", "1::2::3", "::1.2.3.4", "1.2.3.4::",
     "::ffff:1.2.3.4", "0:0:1:0:0:0:1:1", "0:0:1:0:0:1:0:0", "1:0:2:3:4:5:6:7", "fe80::1%eth0", "fe80::1%",
     "fe80::1%a b", "fe80::1%12345678901234567",
     "[fe80::1%a%b]", "::00001", "01.2.3.4", "1.2.3", "256.1.1.1", "1.2.3.4.", "[[1.2.3.4]", "n7...", "...", ":", "a:b",
     "10.n",
     "::ffff:1.2.3.4%x", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7:1.2.3.4", "::ffff:01.2.3.4", "N7.Example.COM."],
)  # fmt: skip
def test_addresses_and_odd_names(decisions: Decisions, name: str) -> None:
    assert decisions.keys([name]) == [keys_by_the_rules(name)]


@settings(max_examples=longer(300))
@given(st.lists(st.tuples(names, names), min_size=1, max_size=20))
def test_a_host_is_in_the_table_exactly_if_an_id_means_the_same_machine(
    decisions: Decisions, pairs: list[tuple[str, str]]
) -> None:
    found = decisions.keys([host for _, host in pairs])
    for (node_id, host), host_keys in zip(pairs, found, strict=True):
        assert bool(machine_keys(node_id) & set(host_keys)) == same_machine(node_id, host), (node_id, host)
