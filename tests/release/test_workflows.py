"""The workflows of .github/, which run elsewhere: actionlint accepts them, and what they use is pinned and exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.debian import MissingError
from tests.integration.process import ROOT
from tests.kubernetes.conftest import not_run
from tests.kubernetes.go_program import GoProgram

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
