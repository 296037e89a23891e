"""Runs the demo of a cluster manager as its make target does."""

from __future__ import annotations

import subprocess
import sys

from tests.integration.process import ROOT, environment


def run_demo(module: str, seconds: int) -> str:
    """What `python -m MODULE --seconds SECONDS` prints; it must end by itself, without a traceback."""
    command = [sys.executable, "-m", module, "--seconds", str(seconds)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout
