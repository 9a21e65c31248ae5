"""The benchmarks of real memory on next to nothing, and the GPU's on a CPU: they run, and say what they promise."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from benchmarks import copies, fences, gpu, memory, ratios, storage  # noqa: E402
from benchmarks.scale import Scale  # noqa: E402
from hicache_ref.config.server_args import ServerArgs  # noqa: E402
from hicache_ref.run.setup import RealConfig  # noqa: E402

TINY = Scale(50, 1, 20, 3, (50,), (), peers=False)


def test_one_report_of_copies_files_and_fences(tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "TOTAL_BYTES", 1 << 20)
    monkeypatch.setattr(copies, "PAGE_TOKENS", {"mha": (4,), "mla": (8,)})
    monkeypatch.setattr(storage, "KIB", (64,))
    monkeypatch.setattr(storage.measure, "__defaults__", ((64,),))
    monkeypatch.setattr(fences, "PASSES", 3)
    tables = memory.measure(Scale(**{**vars(TINY), "work": tmp_path}), 1)
    report = ratios.Report(memory.HEAD, "python -m benchmarks.memory")
    report.write(tmp_path / "report", tables, memory.verdicts(tables), {"load averages": "0"})
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert [row["figure"] for row in results["targets"]] == [target.figure for target in memory.TARGETS]
    assert all(row["lowest"] > 0 and row["verdict"] in ("reached", "falls short") for row in results["targets"])
    assert [row["the layer"] for row in results["fences"]["rows"]] == ["arrived", "woken"]
    assert "## Targets" in (tmp_path / "report" / "report.md").read_text()


def test_what_a_gpu_is_asked_runs_on_a_cpu_too():
    table = gpu.matrix(torch.device("cpu"), 0.0, 1 << 20)
    assert len(table.rows) == 11 and all(row["load"] > 0 and row["backup"] > 0 for row in table.rows)
    config = RealConfig(ServerArgs(page_size=16, max_total_tokens=512), host_reserve_bytes=1 << 20)
    (row,) = gpu.overlap(config, 0.0, 16, 128).rows
    assert row["cached tokens"] == 128 and row["both ms"] > 0


def test_without_a_gpu_it_says_so_and_does_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu", "--out", str(tmp_path / "gpu")])
    gpu.main()
    assert "nothing to do" in capsys.readouterr().out and not (tmp_path / "gpu").exists()
