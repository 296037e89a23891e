"""Real shells with the script of `blocklist completion`: what is on the line after TAB."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import pytest

from tests import debian
from tests.integration.process import wait_until

SHELLS: Final = ("bash", "zsh", "fish")
INSTALLED_ZSH: Final = """\
[[ -d ~/.zfunc ]] || blocklist --install-completion zsh
source ~/.zshrc
"""
"""What a user has in .zshrc after --install-completion, instead of a sourced script."""
_BASH: Final = r"""
PS1='> '
source <(blocklist completion bash)
bind 'set enable-bracketed-paste off'
bind 'TAB: menu-complete'
bind -x '"\C-x": echo "$READLINE_LINE" >> "$HOME/lines"; READLINE_LINE='
cd "$HOME/folder"
touch "$HOME/ready"
"""
_ZSH: Final = r"""
autoload -Uz compinit; compinit -D
source <(blocklist completion zsh)
"""
_ZSH_KEYS: Final = r"""
unset zle_bracketed_paste
setopt menu_complete
log_line() { print -r -- "$BUFFER" >> $HOME/lines; BUFFER= }
zle -N log_line
bindkey '^I' complete-word
bindkey '^X' log_line
cd $HOME/folder
touch $HOME/ready
"""


class Shell(Protocol):
    def complete(self, line: str, tabs: int = 1) -> str:
        """The line after TAB was pressed so often, each time for the next of the words that are offered."""


def require(shell: str) -> str:
    """The path of the shell. Where it cannot be installed, the test is skipped; with CI set, it fails."""
    try:
        return debian.require({shell: shell})[shell]
    except debian.MissingError as error:
        if "CI" in os.environ:
            raise
        return pytest.skip(f"NOT RUN: the completion of {shell}. {error}")


@contextmanager
def running(shell: str, folder: Path, env: Mapping[str, str], zshrc: str = _ZSH) -> Iterator[Shell]:
    """The shell, with a home in this folder. Its current folder has the files `n-file` and `r12-file`."""
    program = require(shell)
    (folder / "folder").mkdir()
    for name in ("n-file", "r12-file"):
        (folder / "folder" / name).touch()
    own = {**env, "HOME": str(folder), "TERM": "xterm"}
    if shell == "fish":
        yield Fish(program, folder, own)
        return
    (folder / "bashrc").write_text(_BASH)
    (folder / "zdotdir").mkdir()
    (folder / "zdotdir" / ".zshrc").write_text(zshrc + _ZSH_KEYS)
    own |= {"ZDOTDIR": str(folder / "zdotdir")} if shell == "zsh" else {}
    options = ["--rcfile", str(folder / "bashrc")] if shell == "bash" else []
    with _on_terminal(folder, [program, *options, "-i"], own) as interactive:
        yield interactive


class Fish:
    """Prints what it offers; asked anew for each line."""

    def __init__(self, program: str, home: Path, env: Mapping[str, str]) -> None:
        self._program, self._home, self._env = program, home, env
        self._run('blocklist completion fish > "$HOME/completion.fish"')

    def complete(self, line: str, tabs: int = 1) -> str:
        printed = self._run('source "$HOME/completion.fish"; complete -C "$argv[1]"', line)
        offered = [each.partition("\t")[0] for each in printed.splitlines()]
        before = line.rpartition(" ")[0]
        return f"{before} {offered[tabs - 1]}" if offered else line

    def _run(self, script: str, *arguments: str) -> str:
        run = [self._program, "--no-config", "-c", script, *arguments]
        done = subprocess.run(
            run, cwd=self._home / "folder", env=self._env, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stderr == ""
        return done.stdout


class InteractiveShell:
    """bash or zsh on a terminal. Ctrl-X writes the line to a file and empties it."""

    def __init__(self, terminal: int, home: Path) -> None:
        self._terminal, self._lines = terminal, home / "lines"

    def complete(self, line: str, tabs: int = 1) -> str:
        self._lines.write_text("")
        os.write(self._terminal, f"{line}{tabs * chr(9)}\x18".encode())
        self.wait_for_line()
        return self._lines.read_text().rstrip()

    def wait_for_line(self) -> None:
        wait_until(lambda: self.drain() and self._lines.read_text().endswith("\n"))

    def drain(self) -> bool:
        """Read what it prints, so that it can go on."""
        while select.select([self._terminal], [], [], 0)[0]:
            os.read(self._terminal, 65536)
        return True


@contextmanager
def _on_terminal(home: Path, run: list[str], env: Mapping[str, str]) -> Iterator[InteractiveShell]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(run[0], run, env)
    shell = InteractiveShell(terminal, home)
    try:
        wait_until(lambda: shell.drain() and (home / "ready").exists())
        yield shell
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
