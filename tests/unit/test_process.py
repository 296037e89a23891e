"""The process of the service and its operating system."""

from __future__ import annotations

import resource
import shutil
import subprocess
import time

import pytest
from structlog.testing import capture_logs

from app.requests import EXAMPLE_BODY, BlockRequest
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


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
def test_the_example_that_is_printed_blocks_for_two_hours(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    body = subprocess.run([shell, "-c", f"printf %s {EXAMPLE_BODY}"], capture_output=True, text=True, check=True).stdout
    request = BlockRequest.model_validate_json(body)
    assert request.end_timestamp / 1000 - time.time() == pytest.approx(7200, abs=60)
