"""TAB: the command line as a shell passes it, what may come next, and the scripts that make a shell ask."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from blocklist.cli import contexts, environment, output
from blocklist.model.errors import BlocklistError

if TYPE_CHECKING:
    from typer.core import TyperGroup

COMPLETE: Final = "_BLOCKLIST_COMPLETE"
"""The variable with which the scripts of `blocklist completion` ask for completions."""
REQUESTS: Final = frozenset({"complete_bash", "complete_zsh", "complete_fish"})
"""What the scripts ask for; typer serves others, such as PowerShell."""
EXIT_FILES: Final = 1
"""Exit code that asks the shell for the files of the folder instead; scripts of typer do so for fish."""
_CONTEXT: Final = "--context="
_QUOTES: Final = frozenset("\"'\\")
_BREAKS: Final = frozenset(":=")
"""Characters that bash makes words of their own, and of which only what follows them is replaced by a completion."""

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


def use_scripts_for(arguments: Sequence[str]) -> None:
    """Have --install-completion and --show-completion use these scripts, too."""
    if {"--install-completion", "--show-completion"}.isdisjoint(arguments):
        return
    from typer import _completion_shared  # noqa: PLC0415

    _completion_shared._completion_scripts.update(SCRIPTS)  # noqa: SLF001


def complete(command: TyperGroup) -> None:
    """Print the completions of the line in the environment; none if it is invalid: an error would be printed into it.

    Nodes are those of the service that the line will use.
    """
    line = read_line()
    if (names := _contexts(line)) is not None:
        print_completions(names, kept=line.kept)
        return
    try:
        words = environment.take_context(line.words)
        found, files = _found(command, words, line.incomplete)
    except BlocklistError:
        found, files = {}, False
    print_completions(found, kept=line.kept, files=files)


def _contexts(line: CompletedLine) -> list[str] | None:
    """The values of --context; None if another word is completed."""
    if line.words[-1:] == ["--context"]:
        return complete_context(line.incomplete)
    if line.incomplete.startswith(_CONTEXT):
        return [_CONTEXT + name for name in complete_context(line.incomplete.removeprefix(_CONTEXT))]
    return None


def complete_context(incomplete: str) -> list[str]:
    """The contexts that begin so; none if their file cannot be read."""
    with suppress(BlocklistError):
        return [name for name in contexts.load().contexts if name.startswith(incomplete)]
    return []


def _found(command: TyperGroup, words: list[str], incomplete: str) -> tuple[dict[str, str], bool]:
    """What the commands offer, each with its help; and whether it may be a file."""
    # Private: if a later typer has moved them, all but this goes on working.
    from typer._click.shell_completion import _resolve_context, _resolve_incomplete  # noqa: PLC0415

    context = _resolve_context(command, {}, "blocklist", words)
    completed, value = _resolve_incomplete(context, words, incomplete)
    # `--action=m`: the word begins with the name of the option.
    before = incomplete.removesuffix(value)
    found = {before + item.value: item.help or "" for item in completed.shell_complete(context, value)}
    return found, _may_be_file(completed)


def _may_be_file(completed: object) -> bool:
    """Whether the value may be the name of a file: no command or option, and nothing that is known here."""
    is_group = hasattr(completed, "commands")
    return not is_group and getattr(completed, "_custom_shell_complete", None) is None


class CompletedLine(NamedTuple):
    """The words before the one that is completed, without the command's name, and the beginning of that word.

    The shell keeps the first `kept` characters of the word; a completion replaces the others.
    """

    words: list[str]
    incomplete: str
    kept: int = 0


def read_line() -> CompletedLine:
    """The line, from the environment. Quotes are removed, also one that is still open."""
    if os.environ[COMPLETE] == "complete_bash":
        return _of_bash(_unquoted(os.environ.get("COMP_WORDS", "")), int(os.environ.get("COMP_CWORD", "0")))
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _unquoted(line)[1:]
    # Without the space, a word that is not finished; an open quote may contain the space.
    is_new_word = line.endswith(" ") and not (words and words[-1].endswith(" "))
    return CompletedLine(words, "") if not words or is_new_word else CompletedLine(words[:-1], words[-1])


def _of_bash(words: list[str], place: int) -> CompletedLine:
    """`fe80::1` and `--context=lab` are three words for bash, unless COMP_WORDBREAKS is another one."""
    joined: list[str] = []
    is_break, kept = True, 0
    for word in words[1 : place + 1]:
        was_break, is_break = is_break, _BREAKS.issuperset(word)
        if joined and (is_break or was_break):
            kept = len(joined[-1]) + len(word) * is_break
            joined[-1] += word
        else:
            kept = len(word) * is_break
            joined.append(word)
    return CompletedLine(joined[:-1], joined[-1], kept) if 0 < place < len(words) else CompletedLine(joined, "")


def _unquoted(line: str) -> list[str]:
    if _QUOTES.isdisjoint(line):
        return line.split()
    import shlex  # noqa: PLC0415 - rarely needed

    parser = shlex.shlex(line, posix=True)
    parser.whitespace_split, parser.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(parser)
    except ValueError:
        # A quote is still open.
        words.append(parser.token)
    return words


def print_completions(found: Sequence[str] | Mapping[str, str], *, kept: int = 0, files: bool = False) -> None:
    """Print the words, in this order, each with its help if it has one.

    The shell keeps the first `kept` characters of the word. With `files`, files are offered if no words are found.
    """
    texts = found if isinstance(found, Mapping) else dict.fromkeys(found, "")
    match os.environ[COMPLETE]:
        case "complete_zsh" if texts:
            items = " ".join(_for_zsh(word, text) for word, text in texts.items())
            output.print_lines(f"local -a blocklist_words=({items}); _describe -V blocklist blocklist_words")
        case "complete_zsh":
            output.print_lines("_files" if files else "")
        case "complete_fish" if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") != "is-args":
            output.print_lines(*("\t".join(filter(None, item)) for item in texts.items()))
        case "complete_bash":
            output.print_lines(*(word[kept:] for word in texts))
    if files and not texts:
        sys.exit(EXIT_FILES)


def _for_zsh(word: str, text: str) -> str:
    """An item of _describe, quoted for eval."""
    item = word.replace("\\", "\\\\").replace(":", "\\:") + (f":{text}" if text else "")
    return "'" + item.replace("'", "'\\''") + "'"
