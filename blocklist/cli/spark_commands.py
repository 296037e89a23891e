"""spark jar and spark defaults: what a Spark installation needs to load the agent."""

from __future__ import annotations

import os
from pathlib import Path

from blocklist.cli.environment import connect
from blocklist.cli.output import print_lines, print_stderr
from blocklist.model.errors import InvalidError
from blocklist.spark.jar import JAR_NAME, LISTENER_CLASS, jar_path


def jar() -> None:
    """Print the path of the agent's jar in this installation."""
    print_lines(str(_jar_path()))


def defaults() -> None:
    """Print the lines for spark-defaults.conf with which all applications use the agent and this service."""
    with connect() as client:
        url = client.url
    token_file = os.environ.get("BLOCKLIST_TOKEN_FILE")
    lines = {
        "spark.driver.extraClassPath": str(_jar_path()),
        "spark.extraListeners": LISTENER_CLASS,
        "spark.blocklist.url": url,
        **({"spark.blocklist.tokenFile": str(Path(token_file).absolute())} if token_file else {}),
    }
    print_lines(*(f"{name} {value}" for name, value in lines.items()))
    if os.environ.get("BLOCKLIST_TOKEN"):
        print_stderr(
            "BLOCKLIST_TOKEN is not in these lines, because Spark sends properties to all executors: write the token to"
            " a file that only the drivers can read, and add spark.blocklist.tokenFile with its path."
        )


def _jar_path() -> Path:
    try:
        return jar_path()
    except FileNotFoundError as error:
        raise InvalidError(
            f"This installation has no jar at {error}: reinstall blocklist, or download it from the service"
            f" (/spark/{JAR_NAME})."
        ) from None
