"""The file of nodes: what it may contain, and faults with line and column."""

from __future__ import annotations

import pytest

from blocklist.model.errors import InvalidError
from blocklist.model.nodes_file import MAX_FAULTS, parse_nodes_file
from blocklist.model.reported_node import make_reported_node

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
