"""Lock the dependencies of pyproject.toml, and of npm/package.json: versions, hashes for every platform, no addresses.

Versions that are locked already are kept; `--upgrade` takes the newest that pyproject.toml allows.
"""

import shutil
import subprocess
import sys

LOCK = ("uv", "pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes")
QUIET = ("--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")

# The service is first: the other lock files take over its versions.
SAME = ("--constraint", "requirements/service.txt")
SERVICE = ("pyproject.toml", "--extra", "service", "--extra", "notices")
# The build backend is installed beside the others, so its lock file leaves out what the project itself needs.
LOCKS = {
    "service": SERVICE,
    "build": ("--group", "pyproject.toml:build", *SAME),
    "spark": ("--group", "pyproject.toml:spark", *SAME, "pyproject.toml"),
    "dev": ("--group", "pyproject.toml:dev", *SAME, *SERVICE, "--extra", "telemetry"),
    "kerberos": ("--group", "pyproject.toml:kerberos", *SAME),
    "generators": ("--group", "pyproject.toml:generators"),
    "release": ("--group", "pyproject.toml:release"),
}

for name, options in LOCKS.items():
    command = [*LOCK, *QUIET, *sys.argv[1:], "--output-file", f"requirements/{name}.txt", *options]
    print(*command)
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)

npm = ("npm", "update" if "--upgrade" in sys.argv else "install", "--package-lock-only", "--ignore-scripts")
if shutil.which(npm[0]) is None:
    sys.exit("requirements/npm/package-lock.json stays as it is, because npm is missing.")
print(*npm)
subprocess.run(npm, cwd="requirements/npm", check=True, stdout=subprocess.DEVNULL)
