"""YARN's exclude file: the manager's entries, parsed as YARN parses them; everything else stays unchanged."""

from __future__ import annotations

import re
from types import ModuleType
from xml.dom.minidom import Element, parseString

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.managers.plan import ManagerError
from blocklist.managers.yarn import exclude_file, exclude_xml
from blocklist.managers.yarn.exclude_file import Entries

names = st.from_regex(r"[A-Za-z0-9._:-]{1,20}", fullmatch=True).filter(lambda name: name not in {".", ".."})
timeouts = st.none() | st.integers(-1, 2**31 - 1)
foreign_lines = st.lists(
    st.one_of(
        names, st.just(""), names.map("# {}".format), st.tuples(names, names).map("\t {0[0]}  {0[1]} # why".format)
    ),
    max_size=6,
)
foreign_hosts = st.lists(
    st.one_of(
        names.map("<host><name>{}</name></host>".format),
        st.tuples(names, names).map("<host><name> {0[0]}, {0[1]}\n</name><timeout>7</timeout></host>".format),
        names.map("<!-- {} ä -->".format).filter(lambda text: "--" not in text[4:-3] and "---" not in text),
        st.just("\n"),
    ),
    max_size=6,
)


def read_plain(data: bytes) -> Entries:
    """As Hadoop's HostsFileReader does."""
    found: dict[str, int | None] = {}
    for line in data.decode().split("\n"):
        for word in re.split(r"[ \t\n\f\r]+", line):
            if word.startswith("#"):
                break
            if word:
                found[word] = None
    return found


def read_xml(data: bytes) -> Entries:
    """As Hadoop's HostsFileReader does: the last entry of a name counts."""
    found: dict[str, int | None] = {}
    for host in parseString(data).getElementsByTagName("host"):
        seconds = element_text(host, "timeout")
        for name in element_text(host, "name").split(","):
            found[name.strip()] = int(seconds) if seconds else None
    return found


def element_text(host: Element, tag: str) -> str:
    nodes = host.getElementsByTagName(tag)
    return "".join(child.data for child in nodes[0].childNodes) if nodes else ""  # type: ignore[union-attr]


@given(foreign_lines, st.booleans(), st.lists(st.dictionaries(names, st.none(), max_size=4), max_size=4))
def test_a_plain_file_has_the_entries_of_others_and_ours(lines: list[str], ended: bool, several: list[Entries]) -> None:
    original = "\n".join(lines).encode() + (b"\n" if ended else b"")
    check_round_trip(exclude_file, original, several, read_plain)


@given(foreign_hosts, st.booleans(), st.lists(st.dictionaries(names, timeouts, max_size=4), max_size=4))
def test_an_xml_file_has_the_entries_of_others_and_ours(hosts: list[str], lead: bool, several: list[Entries]) -> None:
    body = "<hosts>" + "".join(hosts) + "</hosts>"
    original = ('<?xml version="1.0"?>\n<!-- blocklist: begins -->' * lead + body).encode()
    check_round_trip(exclude_xml, original, several, read_xml)


def check_round_trip(form: ModuleType, original: bytes, several: list[Entries], read: object) -> None:
    assert callable(read)
    foreign = read(original)
    data = original
    for entries in [*several, {}]:
        data = form.render(form.parse(data), entries)
        assert read(data) == {**entries, **foreign}
        assert form.parse(data).entries == entries
        assert {*form.parse(data).others} == {*foreign}
        assert form.render(form.parse(data), entries) == data, "rendering twice changes nothing"
    # The bytes of others stay the same.
    assert data == original


@pytest.mark.parametrize("root", ["<hosts/>", "<hosts />", '<?xml version="1.0"?>\n<hosts></hosts>', "", " \n"])
def test_an_empty_xml_file_gets_its_first_entry(root: str) -> None:
    data = exclude_xml.render(exclude_xml.parse(root.encode()), {"n1": -1, "n2": None})
    assert read_xml(data) == {"n1": -1, "n2": None}
    assert read_xml(exclude_xml.render(exclude_xml.parse(data), {})) == {}


def test_an_xml_file_has_the_format_that_yarn_documents() -> None:
    assert exclude_xml.render(exclude_xml.parse(b""), {"host2": 123, "host1": None}).decode() == (
        '<?xml version="1.0"?>\n<hosts>\n'
        "  <!-- blocklist: begin (kept by blocklist.managers) -->\n"
        "  <host><name>host1</name></host>\n"
        "  <host><name>host2</name><timeout>123</timeout></host>\n"
        "  <!-- blocklist: end -->\n"
        "</hosts>\n"
    )


def test_all_entries_between_the_marks_are_ours() -> None:
    data = b"a\n# blocklist: begin\nb  c # who\n# blocklist: end\nd"
    assert exclude_file.parse(data).entries == {"b": None, "c": None}
    assert exclude_file.render(exclude_file.parse(data), {}) == b"a\nd"


@pytest.mark.parametrize(
    "data",
    [
        b"# blocklist: begin\nn1\n",
        b"n1\n# blocklist: end\n",
        b"# blocklist: end\n# blocklist: begin\n",
        b"# blocklist: begin\n# blocklist: end\n# blocklist: begin\n# blocklist: end\n",
    ],
)
def test_damaged_marks_are_an_error(data: bytes) -> None:
    with pytest.raises(ManagerError, match="repair it by hand"):
        exclude_file.parse(data)
    xml = b"<hosts>" + re.sub(rb"# (.*)", rb"<!-- \1 -->", data) + b"</hosts>"
    with pytest.raises(ManagerError, match="repair it by hand"):
        exclude_xml.parse(xml)


@pytest.mark.parametrize("data", [b"n1\n", b"<hosts>", b"<hosts></host>", "<hosts></hosts>".encode("utf-16")])
def test_malformed_xml_is_an_error(data: bytes) -> None:
    with pytest.raises(ManagerError, match="XML"):
        exclude_xml.parse(data)
