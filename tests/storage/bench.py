"""What every side of a store's benchmark must do before its time means anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import stores

from .fakes import read_page


def bring_back(store: Any, folder: Path) -> None:
    """Every side keeps a batch and brings it back, twice, since it is emptied in between."""
    host = stores.pool("page_first", 16)
    wanted = [read_page(host, page) for page in range(stores.BATCH)]
    with store.places(str(folder)) as place:
        for make in store.sides.values():
            side = make(host, place())
            for _ in range(2):
                side.put()
                host.poison(stores.PAGES)
                side.get()
                assert [read_page(host, page) for page in range(stores.BATCH)] == wanted
                side.empty()
            side.close()
