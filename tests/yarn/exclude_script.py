"""The script of docs/managers.md that keeps YARN's exclude file, exactly as it is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.integration.process import ROOT

_SCRIPT: Final = re.compile(
    r"^```python\n(#!/usr/bin/env python3\n\"\"\"Keeps YARN's.*?)^```", re.MULTILINE | re.DOTALL
)


def write_script(folder: Path) -> Path:
    """An executable file with the script."""
    (text,) = _SCRIPT.findall((ROOT / "docs" / "managers.md").read_text())
    path = folder / "yarn-exclude"
    path.write_text(text)
    path.chmod(0o755)
    return path
