"""Kinds of figures: each draws itself for the page and for paper, and has a table that says the same."""

from .bars import Bars
from .base import Figure, Table
from .flow import Flow
from .lines import Lines, Series
from .parallel import Dimension, Parallel
from .points import Point, Points
from .prefixes import Box, Prefixes

__all__ = [
    "Bars",
    "Box",
    "Dimension",
    "Figure",
    "Flow",
    "Lines",
    "Parallel",
    "Point",
    "Points",
    "Prefixes",
    "Series",
    "Table",
]
