"""Which URL has which proxy: all forms of NO_PROXY that curl accepts, and any other text, which raises nothing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blocklist.client.transport import proxy_of
from blocklist.model.errors import InvalidError

PROXY = "http://proxy.test:3128"
NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_other_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def is_proxied(monkeypatch: pytest.MonkeyPatch, url: str, no_proxy: str) -> bool:
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    return proxy_of(url) is not None


NAME, FULL, V4, V6 = (
    "http://block",
    "https://block.example.com:8224",
    "http://10.1.2.3:8224",
    "http://[2001:db8::7]:8224",
)


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        *((form, url) for form in ("*", " * ", "other,*") for url in (NAME, FULL, V4, V6)),
        *(
            (form, NAME)
            for form in ("block", "BLOCK", "other block", "other,\tblock,", ",,block", "block:80", "block.")
        ),
        *((form, FULL) for form in ("block.example.com", "example.com", ".example.com", ".com", "example.com:8224")),
        *(
            (form, FULL)
            for form in (
                "https://example.com",
                "*.example.com",
                "com.",
                "other.test, EXAMPLE.com.",
                "x,.block.example.com",
            )
        ),
        *((form, V4) for form in ("10.1.2.3", "10.0.0.0/8", "10.1.2.3/8", "10.1.2.3/32", "10.1.2.3:8224", "0.0.0.0/0")),
        *((form, V6) for form in ("2001:db8::7", "[2001:db8::7]", "2001:0db8:0:0::7", "2001:db8::/32")),
        *((form, V6) for form in ("[2001:db8::7]:8224", "2001:db8::7/128", "::/0")),
    ],
)
def test_a_server_that_no_proxy_names_has_none(monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str) -> None:
    assert not is_proxied(monkeypatch, url, no_proxy)


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        *((form, NAME) for form in ("", " ", ",", "lock", "block:8224", "blocks", "b*", ".", "10.0.0.0/8", "::/0")),
        *((form, FULL) for form in ("ple.com", "*.example.com.au", "example.com:443", "a.block.example.com")),
        *(
            (form, V4)
            for form in ("10.1.2.30", "2.3", ".3", "11.0.0.0/8", "10.1.2.3:80", "10.0.0.0/99", "10.0.0", "::/0")
        ),
        *(
            (form, V6)
            for form in ("2001:db8::8", "[2001:db8::7]:80", "2001:db9::/32", "db8::7", "[", "[]", "[::1", "0.0.0.0/0")
        ),
    ],
)
def test_any_other_server_has_it(monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str) -> None:
    assert is_proxied(monkeypatch, url, no_proxy)


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.sampled_from([NAME, FULL, V4, V6])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_raises(monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str) -> None:
    is_proxied(monkeypatch, url, no_proxy)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]", "a.localhost"])
def test_a_server_on_this_machine_has_none(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    assert not is_proxied(monkeypatch, f"http://{host}:8224", "")


def test_the_proxy_is_that_of_the_scheme_else_the_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of(NAME) is None
    monkeypatch.setenv("ALL_PROXY", "all.test:1")
    monkeypatch.setenv("https_proxy", "https://secure.test:2")
    found = [proxy_of(NAME), proxy_of(FULL)]
    assert [str(proxy.url) for proxy in found if proxy] == ["http://all.test:1", "https://secure.test:2"]


@pytest.mark.parametrize("proxy", ["ftp://anna:secret@proxy.test", "http://anna:secret@[::1", "socks5://anna:secret@p"])
def test_what_is_no_proxy_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(InvalidError) as error:
        proxy_of(NAME)
    assert "secret" not in str(error.value)
