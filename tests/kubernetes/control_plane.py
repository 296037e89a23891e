"""Builds the control plane: etcd, the API server, the scheduler, the controller manager and kubectl in one program.

About 12 minutes of CPU the first time on a machine, seconds after a change while Go's build cache lives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.kubernetes.go_program import GoProgram

VERSION: Final = "1.36.3"
"""Of Kubernetes, as in go.mod. Another one: change all `replace` lines there, then `go list -mod=mod -deps .`."""
_VARIABLES: Final = {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": VERSION.split(".")[1]}
_PROGRAM: Final = GoProgram(
    name="kubernetes",
    version=VERSION,
    sources=Path(__file__).parent,
    files=("go.mod", "go.sum", "main.go"),
    linker_flags=" ".join(
        ["-s", "-w", *(f"-X k8s.io/component-base/version.{name}={value}" for name, value in _VARIABLES.items())]
    ),
)


def require_control_plane() -> Path:
    """The path of the program, which is built first if it is not there; `kubectl` is beside it.

    Raises MissingError without Go. An error of the compiler is a RuntimeError with its output.
    """
    program = _PROGRAM.require()
    kubectl = program.with_name("kubectl")
    if not kubectl.is_symlink():
        kubectl.symlink_to(program.name)
    return program
