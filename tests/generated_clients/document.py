"""The published API document, as the generators read it."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.integration.process import ROOT

PATH: Final = ROOT / "openapi" / "blocklist.json"
DOCUMENT: Final[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
OPERATIONS: Final[list[dict[str, Any]]] = [
    operation for methods in DOCUMENT["paths"].values() for operation in methods.values()
]
OPERATION_IDS: Final[list[str]] = [operation["operationId"] for operation in OPERATIONS]
