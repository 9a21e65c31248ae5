"""Request workloads: public traces, seeded generators, schedules, statistics. Knows nothing of caches.

for request in workloads.open_trace("conversation").requests(workloads.OpenLoop(speed=2)): ...
"""

from .errors import TraceError
from .find import open_workload
from .fit import MEANING
from .formats import FORMATS, Format, open_trace
from .generate import GENERATORS, generator, parameters_of
from .request import Blocks, Content, Request, Runs
from .samples import SAMPLES, sample
from .schedule import ARRIVALS, SCHEDULES, Arrivals, ClosedLoop, OpenLoop, Poisson, Schedule, Session, Spaced, Together
from .speed_trace import SpeedTrace
from .stats import PoolHits, TraceStats, lru_hits, trace_stats
from .tokens import TokenRow, from_tokens, token_content
from .workload import ClockedWorkload, SessionWorkload, Workload
from .write import write_mooncake

__all__ = [
    "ARRIVALS",
    "FORMATS",
    "GENERATORS",
    "MEANING",
    "SAMPLES",
    "SCHEDULES",
    "Arrivals",
    "Blocks",
    "ClockedWorkload",
    "ClosedLoop",
    "Content",
    "Format",
    "OpenLoop",
    "Poisson",
    "PoolHits",
    "Request",
    "Runs",
    "Schedule",
    "Session",
    "SessionWorkload",
    "Spaced",
    "SpeedTrace",
    "Together",
    "TokenRow",
    "TraceError",
    "TraceStats",
    "Workload",
    "from_tokens",
    "generator",
    "lru_hits",
    "open_trace",
    "open_workload",
    "parameters_of",
    "sample",
    "token_content",
    "trace_stats",
    "write_mooncake",
]
