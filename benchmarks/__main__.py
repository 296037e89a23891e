"""`python -m benchmarks [--quick] [NAME …]`: runs all groups, or the named ones. See docs/performance.md."""

import argparse
import importlib
import os
import sys
import traceback
from pathlib import Path

from benchmarks import report
from benchmarks.groups import GROUPS, LONG
from benchmarks.harness import CACHE, QUICK, prepare
from benchmarks.tables import table
from tests import debian


def main(arguments: list[str]) -> int:
    """Run the groups and save their results; return the exit code. A group that fails does not stop the others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join({**GROUPS, **LONG})}")
    parser.add_argument("--quick", action="store_true", help="few and small samples: shows that all works")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in {**GROUPS, **LONG}]:
        parser.error(f"no benchmark named {', '.join(unknown)}: there are {', '.join({**GROUPS, **LONG})}")
    if given.quick:
        os.environ[QUICK] = "1"
    prepare()
    results = CACHE / "quick" if given.quick else report.RESULTS
    failed = [name for name in given.names or GROUPS if not _measured(name, results)]
    print(f"results: {results / 'README.md'}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _measured(name: str, results: Path) -> bool:
    print(f"{name} …", flush=True)
    try:
        rows = importlib.import_module(f"benchmarks.{name.replace('-', '_')}").run()
    except debian.MissingError as error:
        print(error)
        return False
    except Exception:
        traceback.print_exc()
        return False
    report.save(results, name, rows)
    print(table(rows), flush=True)
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
