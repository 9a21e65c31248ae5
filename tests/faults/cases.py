"""All cases, by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf

from hicache_ref.testing.unreliable import Habits

from . import disks, servers
from .disks import flip, shorten
from .servers import Mooncake, Redis
from .story import Case, Seen

# When a fault has shown enough


def counted(what: str, pages: int) -> Callable[[Seen], bool]:
    """The client has counted so many."""
    return lambda seen: seen.counts.get(what, 0) >= pages


def in_vain(calls: int) -> Callable[[Seen], bool]:
    """So many calls have failed or were given up."""
    return lambda seen: len(seen.vain) >= calls


def given_up(calls: int) -> Callable[[Seen], bool]:
    return lambda seen: sum(map(seen.given_up, seen.calls)) >= calls


def slow(calls: int, seconds: float) -> Callable[[Seen], bool]:
    """So many calls took longer, and came back."""
    return lambda seen: sum(call.ended_s - call.began_s > seconds for call in seen.calls if call.ended_s < inf) >= calls


def tried_in_vain(seen: Seen) -> bool:
    """Calls were in vain until the breaker opened, and so was the one that tried again."""
    calls = sorted(seen.vain, key=lambda call: call.began_s)
    return len(calls) > 3 and any(late.began_s - seen.known_s(early) > 0.9 for early, late in pairwise(calls))


def with_error(words: str, shows: Callable[[Seen], bool]) -> Callable[[Seen], bool]:
    """`shows`, of the calls that have failed in this way."""
    return lambda seen: shows(replace(seen, calls=[call for call in seen.calls if words in call.error]))


def all_of(*shows: Callable[[Seen], bool]) -> Callable[[Seen], bool]:
    return lambda seen: all(each(seen) for each in shows)


# Mooncake


def _restart_both(cluster: Mooncake) -> None:
    cluster.start_master()
    cluster.start_owner()


def _kill_owner_then_master(cluster: Mooncake) -> None:
    cluster.kill_owner()
    time.sleep(3.0)
    cluster.kill_master()


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "mooncake-owner",
            "mooncake",
            "SIGKILL the segment owner, soon another lends memory (client_ttl 2 s)",
            partial(servers.mooncake, hurt=Mooncake.kill_owner, mend=Mooncake.start_owner, client_ttl_s=2),
            with_error("-800", in_vain(3)),
            mended_s=60.0,
            quick=True,
        ),
        Case(
            "mooncake-owner-forgotten",
            "mooncake",
            "SIGKILL the segment owner; another comes when the master has forgotten it (client_ttl 10 s)",
            partial(servers.mooncake, hurt=Mooncake.kill_owner, mend=Mooncake.start_owner),
            all_of(with_error("-800", in_vain(3)), counted("refused_pages", 8)),
            hurt_s=60.0,
            mended_s=60.0,
        ),
        Case(
            "mooncake-master",
            "mooncake",
            "SIGKILL the master, later start it again; the owner mounts its segment by itself",
            partial(servers.mooncake, hurt=Mooncake.kill_master, mend=Mooncake.start_master),
            tried_in_vain,
            breaks=True,
            hurt_s=60.0,
            mended_s=60.0,
        ),
        Case(
            "mooncake-master-impatient",
            "mooncake",
            "the same; calls are given up after 1 s, and their pages are nobody's until they return",
            partial(servers.mooncake, hurt=Mooncake.kill_master, mend=Mooncake.start_master),
            all_of(tried_in_vain, given_up(2)),
            breaks=True,
            prefetch="timeout",
            timeout_s=1.0,
            hurt_s=60.0,
            mended_s=60.0,
        ),
        Case(
            "mooncake-owner-then-master",
            "mooncake",
            "SIGKILL the segment owner, 3 s later the master; later start both",
            partial(servers.mooncake, hurt=_kill_owner_then_master, mend=_restart_both),
            with_error("-900", tried_in_vain),
            breaks=True,
            hurt_s=60.0,
            mended_s=60.0,
        ),
        Case(
            "mooncake-master-frozen",
            "mooncake",
            "SIGSTOP the master, later SIGCONT; calls are given up after 1 s",
            partial(servers.mooncake, hurt=Mooncake.freeze_master, mend=Mooncake.thaw_master),
            all_of(tried_in_vain, given_up(2)),
            breaks=True,
            prefetch="timeout",
            timeout_s=1.0,
            hurt_s=60.0,
            mended_s=60.0,
        ),
        Case(
            "mooncake-full",
            "mooncake",
            "another client fills the store and holds leases on all of it; later its leases end",
            servers.filled_mooncake,
            counted("refused_pages", 8),
            hurt_s=60.0,
            mended_s=60.0,
        ),
        Case(
            "mooncake-shortened",
            "mooncake",
            "every second object is replaced by the half of it",
            partial(servers.mooncake, hurt=lambda cluster: cluster.change(shorten), mend=lambda _: None),
            counted("bad_pages", 4),
        ),
        Case(
            "mooncake-flipped",
            "mooncake",
            "every second object is replaced by one with a bit flipped (verify)",
            partial(servers.mooncake, hurt=lambda cluster: cluster.change(flip), mend=lambda _: None, verify=True),
            counted("bad_pages", 4),
        ),
        Case(
            "redis-killed",
            "redis",
            "SIGKILL the server, later start it again, empty",
            partial(servers.redis, hurt=Redis.kill, mend=lambda redis: redis.server.start()),
            tried_in_vain,
            breaks=True,
            quick=True,
        ),
        Case(
            "redis-frozen",
            "redis",
            "SIGSTOP the server, later SIGCONT; the client's own limit is 0.5 s",
            partial(servers.redis, hurt=Redis.freeze, mend=Redis.thaw, timeout_s=0.5),
            tried_in_vain,
            breaks=True,
        ),
        Case(
            "redis-frozen-impatient",
            "redis",
            "the same; calls are given up after 0.3 s while the client would wait 2 s",
            partial(servers.redis, hurt=Redis.freeze, mend=Redis.thaw, timeout_s=2.0),
            all_of(tried_in_vain, given_up(2)),
            breaks=True,
            prefetch="timeout",
            timeout_s=0.3,
        ),
        Case(
            "redis-full",
            "redis",
            "maxmemory is reached (noeviction); later it is raised",
            partial(servers.redis, hurt=lambda redis: redis.limit(1), mend=lambda redis: redis.limit(0)),
            counted("refused_pages", 8),
            quick=True,
        ),
        Case(
            "redis-shortened",
            "redis",
            "every second value is cut in half",
            partial(servers.redis, hurt=lambda redis: redis.change(shorten), mend=lambda _: None),
            counted("bad_pages", 4),
        ),
        Case(
            "redis-flipped",
            "redis",
            "a bit of every second value is flipped",
            partial(servers.redis, hurt=lambda redis: redis.change(flip), mend=lambda _: None),
            counted("bad_pages", 4),
        ),
        Case(
            "file-full",
            "file",
            "the disk is full; later there is room",
            partial(disks.full, make=disks.files_in),
            counted("refused_pages", 8),
            quick=True,
        ),
        Case(
            "file-read-only",
            "file",
            "the disk is remounted read-only; later writable",
            partial(disks.read_only, make=disks.files_in),
            in_vain(8),
            quick=True,
        ),
        Case(
            "file-shortened",
            "file",
            "every second file is cut in half",
            partial(disks.changed_files, change=shorten, pattern="*.bin", make=disks.files_in),
            counted("bad_pages", 4),
        ),
        Case(
            "file-flipped",
            "file",
            "a bit of every second file is flipped (verify)",
            partial(disks.changed_files, change=flip, pattern="*.bin", make=partial(disks.files_in, verify=True)),
            counted("bad_pages", 4),
            quick=True,
        ),
        Case(
            "file-slow",
            "file",
            "every call is up to 0.1 s late",
            partial(disks.with_habits, habits=Habits(late=1.0, delay_s=0.1)),
            slow(20, 0.05),
            prefetch="timeout",
        ),
        Case(
            "file-too-slow",
            "file",
            "every call is up to 1 s late, and given up after 0.3 s",
            partial(disks.with_habits, habits=Habits(late=1.0, delay_s=1.0)),
            given_up(4),
            prefetch="timeout",
            timeout_s=0.3,
        ),
        Case(
            "file-drops",
            "file",
            "calls fail (30 %), fall short (30 %), promise what is not there (30 %), come late (30 %)",
            partial(disks.with_habits, habits=Habits(raises=0.3, short=0.3, lies=0.3, late=0.3, delay_s=0.05)),
            in_vain(12),
        ),
        Case(
            "file-dead",
            "file",
            "every call fails",
            partial(disks.with_habits, habits=Habits(raises=1.0)),
            tried_in_vain,
            breaks=True,
        ),
        Case(
            "lmdb-full",
            "lmdb",
            "the disk is full; later there is room",
            disks.full_lmdb,
            counted("refused_pages", 8),
            quick=True,
        ),
        Case(
            "lmdb-shortened",
            "lmdb",
            "the keys of every second page are cut in half",
            partial(disks.changed_lmdb, change=shorten),
            counted("bad_pages", 4),
        ),
        Case(
            "lmdb-flipped",
            "lmdb",
            "a bit of every second page is flipped",
            partial(disks.changed_lmdb, change=flip),
            counted("bad_pages", 4),
        ),
        Case(
            "nixl-full",
            "nixl",
            "the disk is full; later there is room (POSIX plugin)",
            partial(disks.full, make=disks.nixl_in),
            counted("refused_pages", 8),
        ),
        Case(
            "nixl-shortened",
            "nixl",
            "every second file is cut in half (POSIX plugin)",
            partial(disks.changed_files, change=shorten, pattern="??/*", make=disks.nixl_in),
            counted("bad_pages", 4),
        ),
    )
}


def find(name: str) -> Case:
    """ValueError: there is no such case."""
    if name not in CASES:
        raise ValueError(f"no case {name!r}; known: {', '.join(CASES)}")
    return CASES[name]
