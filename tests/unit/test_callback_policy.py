"""Where pushes may go, and what looking up a name may cost others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from threading import Event

import pytest

from app.net import addresses
from app.net.addresses import CallbackPolicy, PinnedTarget, is_link_local, is_metadata_service, reaches_this_machine
from app.settings import Settings
from blocklist.model.errors import InvalidError, UnavailableError

EVERYTHING = "0.0.0.0/0,::/0,*.example,*.internal"


def own_address() -> str:
    """An address of an interface of this machine, if it has a network not only of loopback."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.200", 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def allows(entries: str, host: str) -> bool:
    policy = CallbackPolicy(entries.split(","))
    try:
        return asyncio.run(policy.resolve(f"http://{host}/hook")).host != ""
    except InvalidError:
        return False


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Addresses by name, in place of those of the machine's resolver; others are unknown."""
    names: dict[str, str] = {}

    def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host not in names:
            raise socket.gaierror(host)
        return [(None, None, None, "", (names[host], port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return names


SPECIAL = [
    "127.0.0.1",
    "127.1",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "017700000001",
    "0.0.0.0",
    "0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[0:0:0:0:0:ffff:7f00:1]",
    "[::7f00:1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "169.254.169.254",
    "169.254.170.2",
    "169.254.7.7",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "[fe80::1]",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
]


@pytest.mark.parametrize("host", [*SPECIAL, pytest.param(own_address(), id="own interface")])
def test_wide_entries_do_not_allow_what_only_this_machine_may_ask(host: str, resolver: dict[str, str]) -> None:
    assert not allows(EVERYTHING, host)
    resolver["evil.example"] = host.strip("[]") if ":" in host else socket.inet_ntoa(socket.inet_aton(host))
    assert not allows(EVERYTHING, "evil.example")


@pytest.mark.parametrize(
    ("entries", "host"),
    [
        ("127.0.0.0/8", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("127.0.0.0/8", "localhost"),
        ("169.254.0.0/16", "169.254.7.7"),
        ("fe80::/10", "[fe80::1]"),
        ("169.254.169.254", "169.254.169.254"),
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.0/24", "a.example"),
        ("*.example", "a.example"),
        (own_address(), own_address()),
    ],
)
def test_a_narrow_entry_allows_it(entries: str, host: str, resolver: dict[str, str]) -> None:
    resolver |= {"localhost": "127.0.0.1", "a.example": "192.0.2.7"}
    assert allows(entries, host)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.1.255.255", True),
        ("10.2.0.0", False),
        ("[fd01::1]:8000", True),
        ("[fe00::1]", False),
        ("[::ffff:10.1.0.1]", True),
        ("[::ffff:10.2.0.1]", False),
        ("a.spark.example", True),
        ("spark.example", False),
        ("badspark.example", False),
        ("a.spark.example.org", False),
    ],
)
def test_networks_and_patterns(host: str, allowed: bool, resolver: dict[str, str]) -> None:
    resolver |= dict.fromkeys(("a.spark.example", "spark.example", "badspark.example"), "192.0.2.7")
    assert allows("*.spark.example,10.1.0.0/16,fd01::/16", host) == allowed


def test_an_unknown_name_gets_the_same_answer_as_a_forbidden_one(resolver: dict[str, str]) -> None:
    """Otherwise registrations would show which names exist in the network of the service."""
    resolver["known.internal"] = "192.0.2.7"
    details = set()
    for host in ("known.internal", "no-such-host.invalid", "192.0.2.7"):
        with pytest.raises(InvalidError) as error:
            asyncio.run(CallbackPolicy(["10.0.0.0/8"]).resolve(f"http://{host}/hook"))
        details.add(error.value.detail.replace(host, "HOST"))
    assert len(details) == 1


def test_a_wide_entry_allows_no_metadata_service_by_a_name_or_a_network() -> None:
    for entries in ("169.254.0.0/16", "169.254.169.0/24", "metadata.internal"):
        assert not allows(entries, "169.254.169.254")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost."])
def test_the_name_of_this_machine_is_no_other_host(host: str, resolver: dict[str, str]) -> None:
    resolver |= {"localhost": "127.0.0.1", "localhost.": "127.0.0.1"}
    assert not allows(EVERYTHING, host)


def test_ordinary_addresses_mean_nothing_else() -> None:
    for address in ("192.0.2.77", "2001:db8::1", "10.0.0.1", "fd00::7", "::ffff:10.0.0.1"):
        assert not reaches_this_machine(address)
        assert not is_metadata_service(address)
        assert not is_link_local(address)


def test_an_address_is_checked_again_at_each_push() -> None:
    """An interface may have got it since the registration."""
    policy = CallbackPolicy(["0.0.0.0/0"])
    target = PinnedTarget(url="", host="a.example", authority="", address="192.0.2.77", named=False)
    assert policy.allows(target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(addresses, "reaches_this_machine", lambda _: True)
        assert not policy.allows(target)


@pytest.mark.parametrize("settings", [Settings(), Settings(auth="tokens"), Settings(callback_hosts="*.internal")])
def test_a_name_that_cannot_be_allowed_is_not_looked_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *names, **_: asked.append(names))
    with pytest.raises(InvalidError, match="BLOCKLIST_CALLBACK_HOSTS"):
        asyncio.run(settings.callback_policy.resolve("http://tracker.evil.example/hook"))
    assert asked == []


class TestSilentNameServers:
    @pytest.fixture(autouse=True)
    def lookups(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """The names that are being looked up, for ever but for `fast`."""
        started: list[str] = []
        released = Event()

        def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            started.append(host)
            if not host.startswith("fast"):
                released.wait(30)
            return [(None, None, None, "", ("192.0.2.7", port))]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        monkeypatch.setattr(addresses, "LOOKUP_SECONDS", 0.5)
        yield started
        released.set()

    def run(self, scenario: Callable[[CallbackPolicy], Awaitable[None]]) -> None:
        async def main() -> None:
            await scenario(CallbackPolicy(["*.example"]))

        asyncio.run(main())

    def test_many_names_of_one_caller_delay_nobody(self, lookups: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        async def scenario(policy: CallbackPolicy) -> None:
            urls = [f"http://silent-{number}.example" for number in range(40)]
            # One after the other, they would take 20 s.
            async with asyncio.timeout(15):
                results = await asyncio.gather(*(policy.resolve(it, "eve") for it in urls), return_exceptions=True)
            assert {type(it) for it in results} == {UnavailableError}
            assert len(lookups) == 1
            monkeypatch.setattr(addresses, "LOOKUP_SECONDS", 30)
            assert (await policy.resolve("http://fast.example", "ann")).address == "192.0.2.7"
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 15) == 1

        self.run(scenario)

    def test_the_names_of_all_callers_together_are_bounded(self, lookups: list[str]) -> None:
        async def scenario(policy: CallbackPolicy) -> None:
            asked = (policy.resolve(f"http://silent-{number}.example", str(number)) for number in range(40))
            await asyncio.gather(*asked, return_exceptions=True)
            assert len(lookups) == addresses.MAX_LOOKUPS
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 15) == 1

        self.run(scenario)

    def test_names_of_one_caller_are_looked_up_one_after_the_other(
        self, lookups: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(addresses, "LOOKUP_SECONDS", 30)

        async def scenario(policy: CallbackPolicy) -> None:
            names = [f"fast-{number}.example" for number in range(20)]
            found = await asyncio.gather(*(policy.resolve(f"http://{name}", "ann") for name in names))
            assert [it.host for it in found] == names
            assert lookups == names

        self.run(scenario)
