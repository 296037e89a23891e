"""The workflows of .github/, which run elsewhere: actionlint accepts them, and what they use is pinned and exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from blocklist import __version__
from tests.debian import MissingError
from tests.integration.process import ROOT
from tests.kubernetes.conftest import not_run
from tests.kubernetes.go_program import GoProgram
from tests.release.conftest import run

WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT: Final = GoProgram(
    name="actionlint",
    version="1.7.8",
    sources=Path(__file__).with_name("actionlint"),
    files=("go.mod", "go.sum", "main.go"),
)


def test_actionlint_accepts_them() -> None:
    try:
        program = ACTIONLINT.require()
    except MissingError as error:
        raise not_run("actionlint", error) from None
    command = [str(program), "-no-color", "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_rights_are_given_to_single_jobs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    actions = re.findall(r"uses: (\S+)", text)
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w/.-]+@[0-9a-f]{40}", action)] == []
    workflow: dict[str, Any] = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_make_target_exists(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"run: make (\S+)", path.read_text(encoding="utf-8"))
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


BEFORE_MAKE: Final = (
    "apt-get update && apt-get install --yes --no-install-recommends make python3-venv git",
    'printf %s "$TOKEN" | docker login ghcr.io --username "$GITHUB_ACTOR" --password-stdin',
)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_all_else_is_a_make_target(path: Path) -> None:
    """So that what runs there can be run here."""
    jobs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert [run for run in commands if not re.fullmatch(r"make [^\n;&|]+", run) and run not in BEFORE_MAKE] == []


def test_publishing_signs_and_pushes_what_was_built(dist: Path, clone: Path) -> None:
    """With programs in place of docker, cosign and gh that write down how they were called."""
    programs = clone.parent / "programs"
    programs.mkdir()
    for name in ("docker", "cosign", "gh"):
        script = f'#!/bin/sh\necho {name} "$@" >> {programs}/calls\ncase $1 in inspect) echo pushed@sha256:1;; esac\n'
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    done = run("make", "--no-print-directory", "publish", "IMAGE=ghcr.io/a/b", cwd=clone, PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    image = f"ghcr.io/a/b:{__version__}"
    assert (programs / "calls").read_text().splitlines()[:6] == [
        "cosign sign-blob --yes --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS",
        f"docker load --input dist/blocklist-{__version__}-image.tar",
        f"docker tag localhost/blocklist:{__version__} {image}",
        f"docker push {image}",
        f"docker inspect --format {{{{index .RepoDigests 0}}}} {image}",
        "cosign sign --yes pushed@sha256:1",
    ]
    packages = {file.name for file in (clone / "packages").iterdir()}
    assert packages == {file.name for file in dist.iterdir() if file.name.endswith((".whl", ".tar.gz"))}
    shutil.rmtree(clone / "packages")
