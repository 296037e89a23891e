"""The pages of Spark recommend the lines with which the tests on real clusters start the agent."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.applications.application import obeying
from tests.integration.process import ROOT

_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SETTING: Final = re.compile(r"(spark\.[\w.]+)(?: +|=|: +)([^\s\\]+)")


@pytest.mark.parametrize("name", ["spark", "kubernetes-spark", "yarn-spark"])
def test_each_block_with_settings_of_the_agent_starts_it_by_the_plugin(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    blocks = [dict(_SETTING.findall(block)) for block in _FENCED.findall(page)]
    agents = [block for block in blocks if "spark.blocklist.url" in block]
    assert agents
    tested = obeying("")
    for block in agents:
        assert block["spark.plugins.defaultList"] == tested["spark.plugins.defaultList"]
        assert not {it for it in block if it.startswith("spark.extra")}
