"""Arrow tables put together from buffers: what pyarrow makes of the same numbers, without what it imports for it."""

from __future__ import annotations

import subprocess
import sys
from array import array

import numpy as np
import pyarrow as pa
import pytest

from hicache_ref.account.arrow import labels, numbers, table


@pytest.mark.parametrize("values", [array("d", [1.5, -2.0, 3.0]), array("q", [1, -(2**62)]), np.array([3, 4], np.int8)])
def test_numbers_of_any_kind(values):
    made = numbers(values)
    assert made.equals(pa.array(np.asarray(values)))
    made.validate(full=True)


def test_nulls():
    values, valid = np.arange(20.0), np.arange(20) % 3 > 0
    made = numbers(values, valid)
    assert made.equals(pa.array(values, mask=~valid))
    assert made.null_count == 7


def test_a_column_outlives_its_numbers():
    values = array("q", [1, 2, 3])
    made = numbers(values)
    values[0] = 9
    del values[1:]
    assert made.to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("codes", [[2, 0, 2], np.array([2, 0, 2], np.int8)])
def test_labels(codes):
    made = labels(codes, ("done", "", "überholt"))
    assert made.to_pylist() == ["überholt", "done", "überholt"]
    made.validate(full=True)


def test_a_table():
    made = table({"a": array("d", [1.0]), "b": labels([0], ["x"])})
    assert made.to_pylist() == [{"a": 1.0, "b": "x"}]


def test_a_replay_needs_no_pandas(tmp_path):
    code = (
        "import sys, hicache_sim; from hicache_sim.api import Options; from pathlib import Path;"
        "hicache_sim.replay('speed', options=Options(limit=30, out=Path(sys.argv[1])), page_size=64);"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True)
