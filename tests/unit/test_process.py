"""The process of the service and its operating system."""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from app.server import RECOMMENDED_FILES, raise_nofile_limit


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        raise_nofile_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("hard", "warnings"), [(RECOMMENDED_FILES - 1, 1), (RECOMMENDED_FILES, 0)])
def test_a_low_limit_of_open_files_is_a_warning(hard: int, warnings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    with capture_logs() as logs:
        raise_nofile_limit()
    assert len(logs) == warnings
