"""Tests that need a program install its package; several workers may do so at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import debian

APT = """#!/bin/sh
# Fails, as apt-get does, while another one runs.
mkdir "$0.lock" || exit 100
sleep 0.2
case "$*" in *install*) printf '' > "${0%/*}/fish" && chmod +x "${0%/*}/fish" ;; esac
rmdir "$0.lock"
"""


def test_workers_install_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apt-get").write_text(APT)
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(debian, "_PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    with ThreadPoolExecutor(3) as workers:
        found = list(workers.map(lambda _: debian.require({"fish": "fish"}), range(3)))
    assert found == [{"fish": str(tmp_path / "fish")}] * 3
