"""Event logs for the report: a slow host, one with a full disk, a near miss, and names that are long or hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.detection.synthetic_logs import event_log

APPLICATIONS: Final = 3
SLOW: Final = "w" * 253
FULL_DISK: Final = "<script>document.title='owned'</script>"
NEAR_MISS: Final = f"n6-{'x' * 250}"
APP_NAME: Final = f"<img src=x onerror=document.title='owned'> {'nightly' * 30}"
_NAMES: Final = {"n3": SLOW, "n5": FULL_DISK, "n6": NEAR_MISS}


def write_report_logs(folder: Path, began: int) -> Path:
    """Write three applications of seven minutes' distance; the near miss is slow in the last one only."""
    folder.mkdir()
    for number in range(APPLICATIONS):
        events = [json.loads(line) for line in event_log(f"app-{number}", began + number * 420_000, slow="n3")]
        for event in events:
            _change(event, is_last=number == APPLICATIONS - 1)
        (folder / f"app-{number}").write_text(
            "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        )
    (folder / "notes.txt").write_text("Ask Kim about rack 7.\n")
    return folder


def _change(event: dict[str, Any], *, is_last: bool) -> None:
    if "App Name" in event:
        event["App Name"] = APP_NAME
    if event["Event"] != "SparkListenerTaskEnd":
        return
    info, host = event["Task Info"], event["Task Info"]["Host"]
    if host == "n6" and is_last:
        event["Task Metrics"]["Executor Run Time"] *= 2
        info["Finish Time"] = info["Launch Time"] + event["Task Metrics"]["Executor Run Time"]
    if host == "n5" and info["Launch Time"] % 3 == 0:
        del event["Task Metrics"]
        error = {"Class Name": "java.io.IOException", "Description": "No space left on device"}
        event["Task End Reason"] = {"Reason": "ExceptionFailure", **error}
    info["Host"] = _NAMES.get(host, host)
