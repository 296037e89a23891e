"""The commands of docs/kubernetes-service.md."""

from __future__ import annotations

import re
import shlex
from typing import Final

from tests.integration.process import ROOT

PAGE: Final = ROOT / "docs" / "kubernetes-service.md"


def blocks(language: str, heading: str = "") -> list[str]:
    """The blocks of the page in this language, or only those below a heading of the second level."""
    text = PAGE.read_text()
    section = text[text.index(f"\n## {heading}") + 1 :].split("\n## ")[0] if heading else text
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def commands(program: str, heading: str = "") -> list[list[str]]:
    """The words of each command of a program, without redirections of files."""
    lines = "".join(blocks("sh", heading)).replace("\\\n", " ")
    plain = re.sub(r" [<>] \S+$", "", lines, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in plain.splitlines() if line.split()[0] == program]
