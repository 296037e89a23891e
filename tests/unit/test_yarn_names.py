"""Which hosts of YARN the ids on the list mean, also while the resolver does not answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection

import pytest

from blocklist import PERMANENT, BlockAction, BlockedNode
from blocklist.managers.command import StoppedError, Stopping
from blocklist.managers.plan import OtherNames
from blocklist.managers.yarn import node_names
from blocklist.managers.yarn.node_names import AddressNames, Blocks, UnresolvedError, confirmed_names, resolve

EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
ADDRESS = "10.0.0.1"


def block(node_id: str, action: BlockAction = BlockAction.MARK_BLOCKED) -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=1, end=PERMANENT, cause="disk")


def blocks_of(
    *nodes: BlockedNode, hosts: Collection[str], names_of: Callable[[str], Collection[str]] = lambda _: ()
) -> Blocks:
    return resolve({node.id: node for node in nodes}, hosts, names_of)


class Resolver:
    """Answers with `names`, or fails while they are None."""

    def __init__(self) -> None:
        self.names: list[str] | None = None
        self.asked: list[str] = []

    def __call__(self, address: str) -> list[str]:
        self.asked.append(address)
        if self.names is None:
            raise socket.herror(2, "Host name lookup failure")
        return self.names


class TestResolve:
    def test_unknown_ids_mean_no_host_and_a_short_name_means_all_its_hosts(self) -> None:
        blocks = blocks_of(block("W1"), block("w3"), block("w2.a."), block(ADDRESS), hosts=["w1.a", "w1.b", "w2.a"])
        assert set(blocks.by_host) == {"w1.a", "w1.b", "w2.a"}
        assert blocks.unmatched == {"w3", ADDRESS}

    def test_two_ids_of_one_host_are_merged(self) -> None:
        found = blocks_of(block("w1"), block("w1.a", EVACUATE), hosts=["w1.a"])
        assert found.by_host["w1.a"].action is EVACUATE
        assert found.ids == {"w1.a": ["w1", "w1.a"]}

    @pytest.mark.parametrize(
        ("others", "hosts", "refused"),
        [
            (["W7.a", "10.0.0.9"], ["w7.a"], []),
            (["w7", "i-7"], [], ["rack1-u7"]),
            (["w7", "w7.a"], ["w7.a"], []),
            ([ADDRESS], ["w8.a"], []),
        ],
    )
    def test_an_id_that_means_no_host_means_that_of_another_name(
        self, others: Collection[str], hosts: list[str], refused: list[str]
    ) -> None:
        addresses = {ADDRESS: ["w8.a"], "10.0.0.9": []}
        blocked = {it: block(it) for it in ("rack1-u7", "w8.b")}
        names = OtherNames(known={"rack1-u7": others, "w8.b": ["w7.b"]})
        found = resolve(blocked, ["w7.a", "w7.b", "w8.a", "w8.b"], addresses.__getitem__, names)
        assert [host for host, ids in found.ids.items() if "rack1-u7" in ids] == hosts
        assert list(found.refused) == refused
        assert found.ids["w8.b"] == ["w8.b"]

    def test_an_address_of_another_cluster_without_an_answer_withholds_no_host(self) -> None:
        def fails(address: str) -> Collection[str]:
            raise UnresolvedError(address, since_start=True)

        found = resolve({"k8s-7": block("k8s-7")}, ["w1"], fails, OtherNames(known={"k8s-7": [ADDRESS]}))
        assert (list(found.pending), list(found.unresolved)) == (["k8s-7"], [])

    @pytest.mark.parametrize(
        ("name", "hosts"),
        [
            pytest.param("W1.a.", ["w1.a"], id="equal"),
            pytest.param("w2.a", ["w2"], id="short form of the full name"),
            pytest.param("w1", [], id="not all hosts that begin with it"),
        ],
    )
    def test_an_address_means_the_host_whose_name_it_has(self, name: str, hosts: list[str]) -> None:
        found = blocks_of(block(ADDRESS), hosts=["w1.a", "w1.b", "w2"], names_of=lambda _: [name])
        assert list(found.by_host) == hosts

    @pytest.mark.parametrize("node_id", ["fe80:0::0:1", "FE80::1", "fe80::1"])
    def test_an_address_is_looked_up_in_its_shortest_form(self, node_id: str) -> None:
        found = blocks_of(block(node_id), hosts=["w1.a"], names_of={"fe80::1": ["w1.a"]}.__getitem__)
        assert found.ids == {"w1.a": [node_id]}


class TestUnresolved:
    def names(self) -> tuple[AddressNames, Resolver]:
        resolver = Resolver()
        return AddressNames(Stopping(), resolver), resolver

    def plan(self, names: AddressNames, *nodes: BlockedNode) -> Blocks:
        names.begin()
        return blocks_of(*nodes, hosts=["w1.a"], names_of=names)

    def test_what_has_been_looked_up_stays_known_while_the_resolver_fails(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(node_names, "_KEPT_SECONDS", 0.0)
        names, resolver = self.names()
        resolver.names = ["w1.a"]
        assert self.plan(names, block(ADDRESS)).ids == {"w1.a": [ADDRESS]}
        resolver.names = []
        assert self.plan(names, block(ADDRESS)).ids == {"w1.a": [ADDRESS]}
        resolver.names = None
        for _ in range(2):
            assert self.plan(names, block(ADDRESS)).ids == {"w1.a": [ADDRESS]}
        assert len(resolver.asked) == 3, "a failure is remembered, too"

    def test_nothing_may_be_freed_until_the_addresses_of_the_first_plan_are_resolved(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(node_names, "_RETRY_SECONDS", 0.0)
        names, resolver = self.names()
        for _ in range(2):
            blocks = self.plan(names, block(ADDRESS))
            assert blocks.unresolved == [ADDRESS]
            assert blocks.pending == {
                ADDRESS: f"Not known to be in force: the resolver does not answer for address {ADDRESS}. Repair it, or"
                " block the node by its name instead."
            }
        resolver.names = ["w1.a"]
        blocks = self.plan(names, block(ADDRESS))
        assert blocks.ids == {"w1.a": [ADDRESS]}
        assert not blocks.unresolved

    def test_an_address_that_is_blocked_later_does_not_keep_others_from_being_freed(self) -> None:
        names, _ = self.names()
        self.plan(names)
        blocks = self.plan(names, block(ADDRESS))
        assert not blocks.unresolved
        assert blocks.pending[ADDRESS].startswith("Not known to be in force")

    def test_an_address_without_a_name_is_no_failure(self) -> None:
        names, resolver = self.names()
        resolver.names = []
        blocks = self.plan(names, block(ADDRESS))
        assert not blocks.unresolved
        assert blocks.unmatched == {ADDRESS}

    def test_a_look_up_is_remembered_and_a_stop_ends_one_that_hangs(self) -> None:
        names, resolver = self.names()
        resolver.names = ["w1"]
        names.begin()
        assert names(ADDRESS) == names(ADDRESS) == ["w1"]
        assert resolver.asked == [ADDRESS]
        stop = Stopping()
        stop.set()
        with pytest.raises(StoppedError):
            stop.call(lambda: Stopping().sleep(60), 60)

    def test_a_look_up_that_takes_too_long_leaves_the_address_unresolved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(node_names, "_LOOK_UP_SECONDS", 0.2)

        def hang(_: str) -> list[str]:
            Stopping().sleep(60)
            return []

        names = AddressNames(Stopping(), hang)
        names.begin()
        with pytest.raises(UnresolvedError):
            names(ADDRESS)


class TestResolver:
    def test_a_name_of_this_machine_leads_back_to_its_address(self) -> None:
        assert "localhost" in confirmed_names("127.0.0.1")

    @pytest.mark.parametrize(
        "error", [socket.herror(1, "Unknown host"), socket.herror(4, "No address associated with name")]
    )
    def test_no_name_is_an_answer(self, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
        monkeypatch.setattr(socket, "gethostbyaddr", raising(error))
        assert confirmed_names(ADDRESS) == ()

    @pytest.mark.parametrize("error", [socket.herror(2, "Host name lookup failure"), TimeoutError("no answer")])
    def test_an_outage_is_none(self, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
        monkeypatch.setattr(socket, "gethostbyaddr", raising(error))
        with pytest.raises(type(error)):
            confirmed_names(ADDRESS)

    def test_a_name_that_does_not_lead_back_does_not_count_but_an_outage_is_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket, "gethostbyaddr", lambda _: ("w1.a", ["stale"], []))
        monkeypatch.setattr(socket, "getaddrinfo", raising(socket.gaierror(socket.EAI_NONAME, "not known")))
        assert confirmed_names(ADDRESS) == []
        monkeypatch.setattr(socket, "getaddrinfo", raising(socket.gaierror(socket.EAI_AGAIN, "failure")))
        with pytest.raises(socket.gaierror):
            confirmed_names(ADDRESS)


def raising(error: OSError) -> Callable[..., object]:
    def fail(*_: object) -> object:
        raise error

    return fail
