"""`python -m benchmarks [NAME …]`: all groups, or the named ones. See docs/performance.md."""

import importlib
import sys

from benchmarks import report
from benchmarks.harness import prepare

GROUPS = ("reads", "writes", "watch", "push", "heartbeats", "memory", "command", "spark")
LONG = ("detection", "detection-speed")  # an hour or two, so only when named


def main(names: list[str]) -> None:
    """Run the groups one after the other and keep what each measured."""
    if unknown := [name for name in names if name not in GROUPS + LONG]:
        raise SystemExit(f"no benchmark named {', '.join(unknown)}: there are {', '.join(GROUPS + LONG)}")
    prepare()
    for name in names or GROUPS:
        print(f"{name} …", flush=True)
        rows = importlib.import_module(f"benchmarks.{name.replace('-', '_')}").run()
        report.keep(name, rows)
        print(report.table(name, rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
