"""Lock the dependencies of pyproject.toml: versions and hashes for every platform, no addresses."""

import subprocess
import sys

LOCK = ("uv", "pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes", "--upgrade")
QUIET = ("--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")

# The service first: what it pins, the development environment takes over.
SAME = ("--constraint", "requirements/service.txt")
for group, constraint in (("service", ()), ("spark", SAME), ("dev", SAME)):
    out = f"requirements/{group}.txt"
    command = [*LOCK, *QUIET, *constraint, "--group", f"pyproject.toml:{group}", "--output-file", out, "pyproject.toml"]
    print(*command)
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
