"""What waiting for a layer costs: before each layer of a forward, a fence for every load the batch was given.

Rules of this file
- Streams and arrivals are the data plane's own, on the CPU. The time is per layer and load.
- Arrived: the layer is there, as it is for all loads but the last few layers of the latest: what every layer pays.
- Woken: the layer comes while the batch waits for it, from the moment it is recorded: how late a waiting batch goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hicache_ref.data.streams import Stream, make_stream
from hicache_ref.data.transfers import Arrival

from .measure import Row, Table, spread
from .scale import Scale, main

LAYERS = 64
PASSES = 50


class Work:
    """A function as a job."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.run = work

    def ended(self, error: BaseException | None) -> None:
        if error is not None:
            raise error


def fences(scale: Scale) -> Table:
    """Microseconds a layer, of passes over all layers."""
    table = Table("fences", "Waiting for a layer", seeds={})
    compute, load = (make_stream(name, "cpu") for name in ("compute", "load"))
    try:
        passes = PASSES * scale.repetitions
        table.rows = [_row("arrived", _arrived(compute, passes)), _row("woken", _woken(compute, load, passes))]
    finally:
        for stream in (compute, load):
            stream.stop()
            stream.join(10.0)
    table.notes.append("Microseconds a layer and load: median, and the quartiles of single passes over all layers.")
    return table


def _row(name: str, passes_us: list[float]) -> Row:
    ordered = sorted(passes_us)
    middle = ordered[len(ordered) // 4 : -(len(ordered) // 4) or None]
    return {"the layer": name, "us/layer": spread(middle), "layers": LAYERS, "passes": len(passes_us)}


def _arrived(compute: Stream, passes: int) -> list[float]:
    arrival = Arrival(1, [compute.event() for _ in range(LAYERS)])
    arrival.over(None)
    found: list[float] = []

    def forward() -> None:
        before_layer = arrival.fence(compute)
        began_s = time.perf_counter()
        for layer in range(LAYERS):
            before_layer(layer)
        found.append((time.perf_counter() - began_s) / LAYERS * 1e6)

    for _ in range(passes):
        compute.run(Work(forward)).synchronize()
    return found


def _woken(compute: Stream, load: Stream, passes: int) -> list[float]:
    """The load records a layer when the batch is known to wait for it."""
    found: list[float] = []
    for _ in range(passes):
        events = [compute.event() for _ in range(LAYERS)]
        arrival = Arrival(1, events)
        recorded, woken = [0.0] * LAYERS, [0.0] * LAYERS
        asked = [False] * (LAYERS + 1)

        def forward(arrival: Arrival = arrival, woken: list[float] = woken, asked: list[bool] = asked) -> None:
            before_layer = arrival.fence(compute)
            for layer in range(LAYERS):
                asked[layer] = True
                before_layer(layer)
                woken[layer] = time.perf_counter()

        def bring(arrival: Arrival = arrival, recorded: list[float] = recorded, asked: list[bool] = asked) -> None:
            for layer in range(LAYERS):
                while not asked[layer]:
                    time.sleep(0)
                time.sleep(0.0002)
                recorded[layer] = time.perf_counter()
                arrival.landed(layer, LAYERS)

        over = compute.run(Work(forward))
        load.run(Work(bring)).synchronize()
        over.synchronize()
        found.append(sum(b - a for a, b in zip(recorded, woken, strict=True)) / LAYERS * 1e6)
    return found


if __name__ == "__main__":
    main(fences)
