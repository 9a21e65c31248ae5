"""kv-cache-tester traces (WEKA): recorded Claude Code sessions, with their sub-agents.

One document a session: `block_size` 64, `hash_id_scope`, `requests[]`. A request has `t`, `api_time`, `think_time` in
seconds, `in` and `out` in tokens, and `hash_ids`, prefix ids of full blocks (the tail has none). An entry of type
"subagent" has its own `requests[]` whose ids belong to the session's. Source: callanjfox/kv-cache-tester, traces/.

Rules of this file
- `t` of a request is when it was sent, on its agent's clock. `t` of a "subagent" entry is when the sub-agent *ended*:
  `t - duration_ms` is where siblings that were spawned together agree to 0.02 s, right behind the answer that spawned
  them. So the sub-agent's clock starts there.
- Ids of scope "local" mean nothing outside their session: each session gets a range of its own.
- In a closed loop, a turn follows the answer that ended last before it was sent: its agent's own, or for the main
  agent that of a sub-agent it waited for. A request can name one such answer; with parallel sub-agents it is the
  slowest of the recording.
- Where `api_time` is missing an answer is taken to end as it starts, so the think time holds the answer's time too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from .errors import TraceError
from .fit import misfit, verdict
from .prefix import PrefixCheck, block_ids
from .request import Blocks, Request
from .rows import ids_of, stamp_of, tokens_of
from .schedule import Session
from .source import Source
from .workload import SessionWorkload

BLOCK_TOKENS = 64
MOST_LOCAL_IDS = 1 << 32
SCOPES = {"local": True, "global": False}


def claims(source: Source) -> bool:
    first = source.head(1)[0]
    return type(first.get("requests")) is list and ("block_size" in first or "hash_id_scope" in first)


def open_weka(source: Source, block_tokens: int | None, chain: bool | None) -> WekaTrace:
    """TraceError: `chain` asked for; a first session that does not fit the block size, or has no prefix ids."""
    if chain:
        raise TraceError("kv-cache-tester ids are prefix ids already", str(source.path), "leave chain (--chain) out")
    return WekaTrace(source, block_tokens)


class WekaTrace(SessionWorkload):
    format = "weka"

    def __init__(self, source: Source, block_tokens: int | None) -> None:
        self.source = source
        self.name = source.path.name
        self._asked = block_tokens
        file, line, document = source.first(1)[0]
        self.block_tokens = self._block_of(document, f"{file}:{line}")
        calls = calls_of(document, f"{file}:{line}")
        self.verdict = verdict(len(call.ids) * self.block_tokens - call.input_tokens for call in calls)
        check = PrefixCheck("a session's ids must be those of prefixes")
        for call in calls:
            check.add(self._ids(call, self.block_tokens), call.where)

    def sessions(self) -> Iterator[Session]:
        """Sessions in order of the file, all starting at 0. TraceError: an entry that cannot be used."""
        base = 0
        with closing(self.source.documents()) as documents:
            for file, line, document in documents:
                turns, next_base = self._turns(document, f"{file}:{line}", base)
                base = next_base if SCOPES[scope_of(document, f"{file}:{line}")] else base
                yield Session(0.0, turns)

    def _turns(self, document: dict[str, Any], where: str, base: int) -> tuple[list[Request], int]:
        """A session's turns with its ids counted from `base`, and the first number they leave free."""
        block = self._block_of(document, where)
        turns = []
        free = base
        for number, call in enumerate(calls_of(document, where)):
            ids = self._ids(call, block) + base
            free = max(free, 1 + int(ids.max(initial=base)))
            turns.append(
                Request(
                    number,
                    call.sent_s,
                    Blocks(ids, block),
                    call.input_tokens,
                    call.answer_tokens or 1,
                    min(call.input_tokens, len(ids) * block),
                    parent=call.parent,
                    think_s=call.think_s,
                )
            )
        return turns, free

    def _block_of(self, document: dict[str, Any], where: str) -> int:
        return self._asked or tokens_of({"block_size": BLOCK_TOKENS, **document}, "block_size", 1, where)

    def _ids(self, call: Call, block: int) -> Any:
        if not -block < len(call.ids) * block - call.input_tokens < block:
            raise misfit(len(call.ids), call.input_tokens, block, call.where)
        try:
            ids = block_ids(call.ids, MOST_LOCAL_IDS)
        except TypeError as error:
            raise TraceError(f"hash_ids cannot be read ({error})", call.where, "ids are whole numbers") from error
        if len(ids) and ids.max() >= MOST_LOCAL_IDS:
            raise TraceError("an id that is too large", call.where, "ids count from 0 in their session")
        return ids


@dataclass
class Call:
    """One request as recorded, times in seconds from the session's start."""

    where: str
    sent_s: float
    ended_s: float
    input_tokens: int
    answer_tokens: int
    ids: list[Any]
    thought_s: float | None
    lane: int
    parent: int | None = None
    think_s: float = 0.0


def calls_of(document: dict[str, Any], where: str) -> list[Call]:
    """All requests of a session, main agent and sub-agents, in order of time; ties in order of the document."""
    entries = document.get("requests")
    if type(entries) is not list or not entries:
        raise TraceError("a session without requests", where, "is the format right?")
    calls: list[Call] = []
    last_s = 0.0
    for number, entry in enumerate(entries):
        here = f"{where} request {number}"
        if type(entry) is not dict:
            raise TraceError(f"a request is an object, not {entry!r:.40}", here, "is the format right?")
        if "requests" in entry:
            calls += sub_agent_calls(entry, here, lane=number + 1)
        else:
            calls.append(call_of(entry, here, start_s=0.0, last_s=last_s, lane=0))
            last_s = calls[-1].sent_s
    calls.sort(key=lambda call: call.sent_s)
    link(calls)
    return calls


def sub_agent_calls(entry: dict[str, Any], where: str, lane: int) -> list[Call]:
    ended_s = stamp_of(entry, "t", 0, where)
    took_s = stamp_of({"duration_ms": 0, **entry}, "duration_ms", 0, where) / 1000
    calls: list[Call] = []
    last_s = 0.0
    if type(entry["requests"]) is not list:
        raise TraceError("requests of a sub-agent are not a list", where, "is the format right?")
    for number, inner in enumerate(entry["requests"]):
        here = f"{where}.{number}"
        if type(inner) is not dict:
            raise TraceError(f"a request is an object, not {inner!r:.40}", here, "is the format right?")
        calls.append(call_of(inner, here, max(0.0, ended_s - took_s), last_s, lane))
        last_s = float(inner["t"])
    return calls


def call_of(entry: dict[str, Any], where: str, start_s: float, last_s: float, lane: int) -> Call:
    """TraceError: a field that is missing or bad."""
    sent_s = start_s + stamp_of(entry, "t", last_s, where)
    return Call(
        where,
        sent_s,
        sent_s + stamp_of({"api_time": 0, **entry}, "api_time", 0, where),
        tokens_of(entry, "in", 1, where),
        tokens_of(entry, "out", 0, where),
        ids_of(entry, where),
        stamp_of(entry, "think_time", 0, where) if "think_time" in entry else None,
        lane,
    )


def link(calls: list[Call]) -> None:
    """Find for each call the answer it followed, and how long after it the call was sent."""
    newest: dict[int, int] = {}
    for number, call in enumerate(calls):
        # A sub-agent's first call follows the main agent; after that a sub-agent waits for itself alone.
        lanes = newest if call.lane == 0 else [call.lane if call.lane in newest else 0]
        ended = [newest[lane] for lane in lanes if lane in newest and calls[newest[lane]].ended_s <= call.sent_s]
        own = newest.get(call.lane)
        call.parent = max(ended, key=lambda other: calls[other].ended_s, default=own)
        if call.parent is not None and call.parent == own and call.thought_s is not None:
            call.think_s = call.thought_s
        elif call.parent is not None:
            call.think_s = max(0.0, call.sent_s - calls[call.parent].ended_s)
        newest[call.lane] = number


def scope_of(document: dict[str, Any], where: str) -> str:
    scope = str(document.get("hash_id_scope", "local"))
    if scope not in SCOPES:
        raise TraceError(f"hash_id_scope is {scope!r:.40}", where, f"known: {', '.join(SCOPES)}")
    return scope
