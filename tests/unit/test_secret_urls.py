"""Log lines of HTTP libraries do not contain the secrets of configured URLs."""

from __future__ import annotations

import logging

import pytest

from app.logs import SecretUrls, redact

SECRET = "T0PSECRET"


@pytest.mark.parametrize(
    ("line", "redacted"),
    [
        (f"Max retries exceeded with url: /v1/{SECRET}?k={SECRET} (Caused by x)",
         "Max retries exceeded with url: REDACTED (Caused by x)"),
        (f"Failed to parse headers (url=https://h/{SECRET}): x", "Failed to parse headers (url=REDACTED): x"),
        (f"sent to https://u:{SECRET}@h/v1?key={SECRET}", "sent to https://REDACTED@h/v1?REDACTED"),
        ("Failed to export spans batch code: 503, reason: x", "Failed to export spans batch code: 503, reason: x"),
    ],
)  # fmt: skip
def test_user_path_and_query_are_removed(line: str, redacted: str) -> None:
    assert redact(line) == redacted


@pytest.mark.parametrize("name", ["urllib3.connectionpool", "requests.sessions"])
def test_lines_that_may_contain_what_a_server_answered_are_dropped(name: str) -> None:
    assert not SecretUrls().filter(logging.LogRecord(name, logging.WARNING, "", 1, SECRET, (), None))


def test_an_exception_is_reduced_to_its_type() -> None:
    error = ConnectionError(f"http://h/{SECRET}")
    about = type(error), error, None
    record = logging.LogRecord("opentelemetry.sdk", logging.ERROR, "", 1, "failed: %s", (f"?k={SECRET}",), about)
    assert SecretUrls().filter(record)
    assert (record.getMessage(), record.exc_info) == ("failed: ?REDACTED (ConnectionError)", None)


def test_lines_of_the_service_are_left_alone() -> None:
    record = logging.LogRecord("app.main", logging.ERROR, "", 1, "why? because", (), None)
    assert SecretUrls().filter(record)
    assert record.getMessage() == "why? because"
