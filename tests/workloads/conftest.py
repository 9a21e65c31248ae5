"""Helpers of the workload tests: small traces written by hand, and content spelled out token by token."""

import gzip
import json

import numpy as np
import pytest


@pytest.fixture
def trace_file(tmp_path):
    """Write rows (dicts, or text as it is) as JSONL; gzip where the name says so."""

    def write(rows, name="trace.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


@pytest.fixture
def mooncake_row():
    def row(timestamp=0, input_length=1000, output_length=10, hash_ids=(1, 2), **extras):
        return {
            "timestamp": timestamp,
            "input_length": input_length,
            "output_length": output_length,
            "hash_ids": list(hash_ids),
            **extras,
        }

    return row


@pytest.fixture
def token_ids():
    """The ids of a request's content, one a token: what `atoms` gives at page size 1."""

    def spell(request):
        return np.frombuffer(request.content.atoms(1, request.content_tokens), dtype=np.int64).tolist()

    return spell


@pytest.fixture
def fingerprint():
    """Everything a request says, as a value that can be compared."""

    def of(request):
        return (
            request.id,
            request.arrival_s,
            request.content.atoms(1, request.content_tokens),
            request.input_tokens,
            request.output_tokens,
            request.content_tokens,
            request.session,
            request.parent,
            request.think_s,
            request.priority,
            request.extra_key,
            request.wave,
        )

    return of
