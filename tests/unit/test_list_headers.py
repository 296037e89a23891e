"""The headers of requests for the list and the table: ETags, compression, waiting, versions."""

from __future__ import annotations

import pytest

from app.engine.cached_list import accepts_gzip, matches_etag
from app.watch import MAX_WAIT, wait_seconds

ETAG = b'"00c0ffee-7"'


@pytest.mark.parametrize(
    "form",
    [
        b"%b", b"W/%b", b'"x", %b', b'%b, "x"', b'"x",%b,"y"', b'W/"x" , W/%b', b'"a,b", %b', b" %b ", b'"", %b',
        b",%b", b"%b, *",
    ],
)  # fmt: skip
def test_one_of_several_etags_matches(form: bytes) -> None:
    assert matches_etag(form % ETAG, (b'"other"', ETAG))
    assert not matches_etag(form.replace(b", *", b"") % b'"00c0ffee-8"', (ETAG,))


def test_a_star_matches_anything() -> None:
    assert matches_etag(b"*", (ETAG,))


@pytest.mark.parametrize(
    "given", [b'"x"', b'W/"x"', b"x", b"", b'"x", "y"', b"W/", b'"', b"00c0ffee-7", b'"*"', b"w/" + ETAG]
)
def test_another_etag_does_not_match(given: bytes) -> None:
    assert not matches_etag(given, (ETAG,))


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        (b"gzip", True), (b"GZIP", True), (b"x-gzip", True), (b"br, gzip;q=0.5", True), (b"gzip;q=1", True),
        (None, False), (b"", False), (b"br", False), (b"identity", False), (b"*", False), (b"*;q=0, identity", False),
        (b"gzip;q=0", False), (b"gzip; q = 0.0", False), (b"gzip;q=0.000, br", False), (b"gzipped", False),
    ],
)  # fmt: skip
def test_compression_is_accepted_or_not(given: bytes | None, accepted: bool) -> None:
    assert accepts_gzip(given) is accepted


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (["wait=30"], 30), (["respond-async, wait=30"], 30), (["WAIT=30"], 30), (['foo; bar="a,b" , wait=30;x'], 30),
        (["return=minimal", "wait=0"], 0), (["wait=x, wait=5"], 5), (["wait=61"], MAX_WAIT),
        (["wait=99999999"], MAX_WAIT), (['wait="7"'], 7),
        *(([text], None) for text in (
            "wait", "wait=", "wait=x", "wait=-1", "wait=+1", "wait=1.5", "wait=1e1", "wait 30", "await=30", "wait=٣",
            "=30", "",
        )),
        ([], None),
    ],
    ids=ascii,
)  # fmt: skip
def test_the_first_valid_wait_counts(given: list[str], seconds: int | None) -> None:
    assert wait_seconds(given) == seconds
