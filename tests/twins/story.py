"""The same requests, put to a live store and to its simulated twin, which is made of what the live one says of itself.

Rules of this file
- A request asks for the pages of a document, reads those that are there and writes them all, as HiCache does.
- The twin's clock is the wall's, so that leases and cleaners have the same time on both sides.
- What counts is how many leading pages each side found, request by request.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hicache_ref.data.storage.client import StorageClient
from hicache_sim.hardware import DEFAULT_STORES, load_store
from hicache_sim.stores import Store, make_store
from tests.storage.fakes import FakeHost, fill, name_of

PAGE_BYTES = 64 << 10


def documents(seed: int, requests: int, count: int = 60, most_pages: int = 12) -> Iterator[list[str]]:
    """Names of the pages of one document after the other, some much more popular than others."""
    rng = random.Random(seed)
    sizes = [rng.randint(2, most_pages) for _ in range(count)]
    weights = [1 / (rank + 1) for rank in range(count)]
    for chosen in rng.choices(range(count), weights, k=requests):
        yield [name_of(1000 * chosen + page) for page in range(sizes[chosen])]


def twin_of(client: StorageClient, backend: str, page_bytes: int, **changes: float) -> Store:
    """An empty simulated store: what `client` says of its own, and for the rest what is known of its kind."""
    profile = load_store(DEFAULT_STORES[backend])
    facts = {name: known.value for name, known in client.keeps(page_bytes).items()}
    facts |= changes

    def number(name: str) -> float:
        return float(facts.get(name, getattr(profile, name)))

    return make_store(
        str(facts.get("eviction", profile.eviction)),
        number("capacity_bytes") / page_bytes,
        number("high_watermark"),
        number("low_watermark"),
        number("lease_s"),
    )


@dataclass
class Tally:
    """Leading pages of each request: found by the probe, read, and there after the write."""

    found: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)


def serve(client: StorageClient, host: FakeHost, names: Sequence[str], tally: Tally) -> None:
    slots = np.arange(len(names))
    found = client.exists(names)
    tally.found.append(found)
    tally.read.append(client.get(names[:found], host, slots[:found]))
    fill(host, names, slots)
    tally.stored.append(client.put(names, host, slots))


def serve_twin(twin: Store, now_s: float, names: Sequence[str], tally: Tally) -> None:
    found = twin.probe(names, now_s)
    tally.found.append(found)
    tally.read.append(twin.read(names[:found], now_s))
    tally.stored.append(twin.write(names, now_s))


def lockstep(
    client: StorageClient,
    twin: Store,
    requests: Iterable[Sequence[str]],
    between: Callable[[int], None] = lambda number: None,
    page_bytes: int = PAGE_BYTES,
) -> tuple[Tally, Tally]:
    """Both sides' tallies. between: called before each request, with its number."""
    real, simulated, host = Tally(), Tally(), FakeHost(16, pieces=2, page_bytes=page_bytes)
    began_s = time.monotonic()
    for number, names in enumerate(requests):
        between(number)
        serve(client, host, names, real)
        serve_twin(twin, time.monotonic() - began_s, names, simulated)
    return real, simulated


def share(tally: Sequence[int], requests: Sequence[Sequence[str]]) -> float:
    """Of all pages asked for."""
    return sum(tally) / sum(map(len, requests))
