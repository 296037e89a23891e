"""What is compared, and with whom: the hosts of one stage, each with the others of them."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody knows them

STAGE: Final = ("app", "stage", "attempt")
"""The columns that name a stage."""
MIN_HOSTS: Final = 3
"""A stage says something from so many hosts on: of two nobody can say which one is the slow one."""


def median_of_others(values: str, place: Column) -> Column:
    """The median of a sorted array without the value at `place` (from 0); of no other value it is null."""
    rest = F.size(values) - 1
    low, high = F.floor((rest - 1) / 2), F.floor(rest / 2)
    return (_without(values, place, low) + _without(values, place, high)) / 2


def _without(values: str, place: Column, index: Column) -> Column:
    shifted = F.when(index < place, index).otherwise(index + 1)
    return F.get(values, shifted.cast("int"))
