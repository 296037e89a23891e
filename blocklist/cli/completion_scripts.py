"""The scripts that make TAB work in a shell.

Each runs `blocklist` with the line in the environment. An exit code of 1 asks for the files of the folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

SCRIPTS: Final[Mapping[str, str]] = {
    # The order is kept, as free nodes come first. Bash before 4.4 has no nosort.
    "bash": """\
_blocklist_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \\
                   _BLOCKLIST_COMPLETE=complete_bash "$1" 2>/dev/null ) ) && compopt +o default
    return 0
}

complete -o default -o nosort -F _blocklist_completion blocklist 2>/dev/null ||
    complete -o default -F _blocklist_completion blocklist""",
    # As a file in fpath it is itself the function that is called; sourced, it has to name one.
    "zsh": """\
#compdef blocklist

_blocklist_completion() {
    eval "$(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _BLOCKLIST_COMPLETE=complete_zsh blocklist 2>/dev/null)"
}

if [[ $funcstack[1] == _blocklist ]]; then
    _blocklist_completion "$@"
else
    compdef _blocklist_completion blocklist
fi""",
    "fish": """\
function __blocklist_completion
    env _BLOCKLIST_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \\
        _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) blocklist 2>/dev/null
    or __fish_complete_path (commandline -ct)
end

complete --command blocklist --no-files --keep-order --arguments "(__blocklist_completion)\"""",
}
"""By shell."""


def use_for(arguments: Sequence[str]) -> None:
    """Have --install-completion and --show-completion use these scripts, too."""
    if {"--install-completion", "--show-completion"}.isdisjoint(arguments):
        return
    from typer import _completion_shared  # noqa: PLC0415

    _completion_shared._completion_scripts.update(SCRIPTS)  # noqa: SLF001
