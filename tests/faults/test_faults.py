"""Stores in trouble under a running workload: the cheap cases. All of them: `make faults`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_ref.data.storage.client import StorageClient, StorageIdentity

from .cases import CASES, counted, find
from .disks import changed_files, files_in
from .report import RESULTS, page
from .story import Case, Trouble, tell

QUICK = [name for name, case in CASES.items() if case.quick]


@pytest.mark.parametrize("name", QUICK)
def test_a_store_in_trouble_spoils_nothing(name, tmp_path):
    outcome = tell(find(name), tmp_path)
    assert outcome.wrong == []
    assert outcome.logits > 50


# Whether a verdict would say so


def case_of(folder_opens, **more) -> Case:
    return replace(Case("-", "file", "-", folder_opens, lambda seen: len(seen.calls) > 20), **more)


def test_wrong_bytes_are_seen(tmp_path):
    """Without `verify` a flipped bit is read as it is."""

    @contextmanager
    def open(folder: Path) -> Iterator[Trouble]:
        with changed_files(folder, flip_high, "*.bin", files_in) as local:
            yield local

    outcome = tell(case_of(open), tmp_path)
    assert any("logits differ" in words for words in outcome.wrong)


def flip_high(page: bytes) -> bytes:
    """In the exponents of many floats."""
    return bytes(byte ^ 0x20 if at % 4 == 3 else byte for at, byte in enumerate(page))


def test_a_store_that_does_not_come_back_is_seen(tmp_path):
    client: list[StorageClient] = []

    def make(identity: StorageIdentity) -> StorageClient:
        client.append(files_in(tmp_path)(identity))
        return client[0]

    @contextmanager
    def open(folder: Path) -> Iterator[Trouble]:
        yield Trouble(make, lambda: client[0].close())

    case = case_of(open, shows=lambda seen: len(seen.vain) > 2, mended_s=1.5, breaks=True)
    outcome = tell(case, tmp_path)
    assert outcome.hits[0] > 0 and outcome.hits[2] == 0
    words = "; ".join(outcome.wrong)
    assert "no hits and no new pages after the store was mended within 1.5 s" in words
    assert "breaker is" in words and "logits" not in words


def test_a_fault_that_does_not_show_is_seen(tmp_path):
    @contextmanager
    def open(folder: Path) -> Iterator[Trouble]:
        yield Trouble(files_in(folder), lambda: None)

    outcome = tell(case_of(open, shows=counted("bad_pages", 1), hurt_s=0.5), tmp_path)
    assert outcome.wrong == ["the fault did not show within 0.5 s"]


# The report


def test_the_report_is_that_of_its_results():
    results = json.loads(RESULTS.read_text())
    assert list(results["cases"]) and set(results["cases"]) <= set(CASES)
    assert RESULTS.with_name("report.md").read_text() == page(results)


def test_unknown_cases_list_the_known():
    with pytest.raises(ValueError, match="no case 'flood'; known: mooncake-owner, "):
        find("flood")
