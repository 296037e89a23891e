"""A URL of the service with a user name or a password is refused by all clients, and never shown."""

from __future__ import annotations

import argparse

import pytest

from blocklist import BlocklistClient
from blocklist.client.credentials import without_credentials
from blocklist.client.transport import service_url
from blocklist.managers.options import checked
from blocklist.model.errors import InvalidError
from blocklist.spark.agent import _checked_url

URLS = [
    "http://anna:secret@host:8224",
    "https://secret@host",
    "http://anna:sec/ret@host",
    "http:/anna:secret@host",
    "anna:secret@host:8224",
    "//anna:secret@host",
    "http//anna:secret@host",
    "http://anna:se?c#ret@host",
]


@pytest.mark.parametrize("url", URLS)
def test_it_is_refused_and_not_shown(url: str) -> None:
    for accept in (BlocklistClient, _checked_url):
        with pytest.raises(InvalidError, match="user name or a password") as refused:
            accept(url)
        assert "ret@" not in str(refused.value)
        assert "anna" not in str(refused.value)
    with pytest.raises(argparse.ArgumentTypeError) as unusable:
        checked(service_url, "is not a URL")(url)
    assert "ret@" not in str(unusable.value)


@pytest.mark.parametrize("url", URLS)
def test_it_is_shown_without_them(url: str) -> None:
    assert without_credentials(url) in {
        "http://…@host:8224",
        "http://…@host",
        "https://…@host",
        "//…@host",
        "//…@host:8224",
    }


def test_other_urls_are_shown_as_they_are() -> None:
    assert without_credentials("https://host:8224/prefix") == "https://host:8224/prefix"
