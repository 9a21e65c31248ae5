"""What every eviction strategy says of itself unless it knows better."""

from __future__ import annotations


class Strategy:
    """Base of the strategies here: ranks that only rise, of nothing but the past."""

    name = ""
    rises_only = True
    reads_future = False
