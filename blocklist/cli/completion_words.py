"""What TAB offers without asking the service: the commands, and which options have a value.

As tables, because to build the commands takes longer than a user waits after TAB. A test compares them with the
commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "block": "Block nodes: no new tasks start there.",
        "drain": "Block nodes, evacuate their tasks, and...",
        "extend": "Extend blocks: they end a DURATION from...",
        "unblock": "Unblock nodes before their end, one after...",
        "list": "Show the blocked nodes.",
        "get": "Show one blocked node.",
        "is-blocked": "Exit code 0 if the node is blocked, 1 if not.",
        "history": "Show changes, the oldest first.",
        "status": "Show where a node's last change is applied.",
        "watch": "Show changes as they happen, until Ctrl-C.",
        "listeners": "Show the listeners, and how far each is...",
        "evidence": "Show what applications report about nodes.",
        "nodes": "Show the nodes that anybody reports,...",
        "claims": "Show who claims which node, until when and...",
        "drift": "Show where listeners report something else...",
        "manager": "Keep a cluster manager in line with the...",
        "flink": "Make a Flink cluster follow the list: runs...",
        "open": "Open the page in a browser, and print its...",
        "completion": "Print the completion for a shell: source...",
        "serve": "Run the service; only in a checkout.",
        "config": "Choose and set contexts, and check the...",
        "token": "Manage tokens.",
        "spark": "Load the agent into Spark drivers.",
    },
    "config": {
        "use": "Make a context the current one: commands...",
        "list": "Show the contexts; * marks the one that...",
        "get": "Show the settings of a context, or one of...",
        "set": "Set one setting of a context.",
        "delete": "Delete a context.",
        "check": "Show the settings, whether the service is...",
    },
    "token": {
        "create": "Create a token.",
        "list": "Show all tokens, without their secrets.",
        "revoke": "Revoke a token, with immediate effect.",
    },
    "spark": {
        "jar": "Print the path of the agent's jar in this...",
        "defaults": "Print the lines for spark-defaults.conf...",
    },
}
"""The commands of each group, each with the short form of its help; the empty name is that of the command itself."""
CONTEXT_COMMANDS: Final = frozenset({"use", "get", "set", "delete"})
"""The commands of `config` whose first argument is a context."""
VALUED_OPTIONS: Final = frozenset({
    "--at", "--by", "--duration", "--force", "--from", "--output", "--owner", "--reason", "--selector", "--since",
    "--timeout", "--type", "--until", "--wait", "-d", "-l", "-o", "-r",
})  # fmt: skip
"""The options with a value of the commands that take nodes."""
FLAGS: Final = frozenset({
    "--dry-run", "--evacuate", "--forever", "--ignore-lapsed", "--merge", "--no-headers", "--strict", "--watch", "-w",
})  # fmt: skip
"""Their options without one."""
