"""A calibration of this machine in a few seconds: it holds what it promises, and a simulation takes it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from hicache_ref.calibrate import compute, copies, driver, stores, wake  # noqa: E402
from hicache_ref.calibrate.api import Wanted, _Bench  # noqa: E402
from hicache_ref.calibrate.copies import blocks  # noqa: E402
from hicache_ref.calibrate.rig import Batch, Rig, RigFailed, batch_of  # noqa: E402
from hicache_ref.config.layouts import OPERATORS  # noqa: E402
from hicache_ref.config.server_args import ServerArgs  # noqa: E402
from hicache_ref.run.setup import RealConfig, make_machine, plan  # noqa: E402
from hicache_sim.api import Options, replay  # noqa: E402
from hicache_sim.build import RunConfig  # noqa: E402
from hicache_sim.build import plan as plan_simulation  # noqa: E402
from hicache_sim.cli import main  # noqa: E402

FLAGS = "--page-size 16 --max-total-tokens 512 --hicache-mem-layout page_first --hicache-storage-backend file"
RESERVE = "--host-reserve 0.1"
OTHER = f"{'0' * 64}_somebody_0_1.bin"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the store, with a page that is somebody else's."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / OTHER).write_bytes(b"kept")
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, pages: Path) -> Path:
    """Made by the command, with next to nothing measured: short pauses, few sizes, the rounds that are the least."""
    path = tmp_path_factory.mktemp("calibration") / "here.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(pages))
        patch.setattr(compute, "NEW_TOKENS", (16, 64, 128))
        patch.setattr(compute, "BEFORE_TOKENS", (0, 128))
        patch.setattr(compute, "BATCHES", (1, 2, 4))
        patch.setattr(copies, "COUNTS", (1, 8))
        patch.setattr(driver, "ALONE", driver.ALONE | {"clients": 6})
        patch.setattr(stores, "TAIL_CALLS", 20)
        patch.setattr(stores, "TIMES_LARGER", (1, 4))
        patch.setattr(wake, "PAUSES_S", (0.0, 0.01, 0.03, 0.1))
        done = CliRunner().invoke(main, f"calibrate --out {path} --seconds 1 {RESERVE} {FLAGS}".split())
    assert done.exit_code == 0, done.output
    assert "written to" in done.output and "prefill:" in done.output
    return path


def content(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def numbers(part: Any) -> list[dict[str, Any]]:
    return [each for each in part.values() if isinstance(each, dict) and "value" in each]


def test_it_says_where_when_and_how(file):
    found = content(file)
    assert {"date", "machine", "versions", "command", "load averages", "threads", "device"} <= found["about"].keys()
    measured = [*numbers(found["hardware"]), *numbers(found["compute"])]
    assert all(each["source"].startswith("measured: ") and each["value"] >= 0 for each in measured)
    store = found["stores"]["file"]
    assert store["eviction"]["value"] == "none" and store["capacity_bytes"]["source"].endswith("free on its disk")
    measured += [each for each in numbers(store) if each["source"].startswith("measured: ")]
    assert len(measured) > 16


def test_every_operator_of_this_attention_is_in_it(file):
    wanted = {f"{io_backend}/{layout}" for io_backend, layout, pool in OPERATORS if pool == "mha"}
    assert content(file)["copies"].keys() == wanted


def test_a_simulation_runs_on_it_with_the_model_that_was_measured(file):
    found, args = content(file), ServerArgs(page_size=16, max_total_tokens=512, hicache_storage_backend="file")
    made = plan_simulation(RunConfig(args, hardware=str(file)))
    real = plan(RealConfig(args, host_reserve_bytes=1 << 20))
    assert made.model == real.spec.shape
    assert made.resolved.token_bytes == real.resolved.token_bytes == found["model"]["kv_bytes_per_token"]
    assert (made.resolved.l1_tokens, made.resolved.l2_tokens) == (real.resolved.l1_tokens, real.resolved.l2_tokens)
    assert made.resolved.args.chunked_prefill_size == real.resolved.args.chunked_prefill_size
    assert made.store is not None and made.store.name == "file of here"
    done = replay("chat", None, Options(limit=5), RunConfig(args, hardware=str(file)))
    assert done.summary["requests"]["total"] == 5


def test_one_number_can_be_changed(file):
    config = RunConfig(ServerArgs(page_size=16), hardware=str(file), hardware_numbers={"h2d_bytes_per_s": 1e9})
    assert plan_simulation(config).hardware.h2d_bytes_per_s == 1e9


def test_pages_of_others_stay_in_the_store(file, pages):
    """And none of the calibration's own stays beside them."""
    assert file.exists()
    assert os.listdir(pages) == [OTHER] and (pages / OTHER).read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--storage nowhere", "--storage nowhere: known are"),
        ("--device tpu", "tpu"),
        ("--model-scale -1", "--model-scale -1"),
    ],
)
def test_bad_flags_end_in_one_line(tmp_path, words, message):
    done = CliRunner().invoke(main, ["calibrate", "--out", str(tmp_path / "x.json"), *words.split()])
    assert done.exit_code != 0 and message in done.output and "Traceback" not in done.output
    assert not (tmp_path / "x.json").exists()


def test_a_rig_times_operations_and_says_what_failed():
    config = RealConfig(ServerArgs(page_size=16, max_total_tokens=512), host_reserve_bytes=1 << 20)
    with make_machine(plan(config), batch_of) as machine:
        rig, some = Rig(machine.plane), blocks(4, 16, 1)
        load = rig.load(some, some)
        both = rig.seconds(load, rig.compute(Batch([(16, 8), (0, 3)], 16, 32, loads=(load.id,))))
        assert len(both) == 2 and min(both) > 0
        assert rig.beside(rig.backup(some, some), [rig.load(some, some) for _ in range(3)]) > 0
        with pytest.raises(RigFailed, match="LOAD of 2 failed"):
            rig.seconds(rig.load(blocks(2, 16, 1), blocks(2, 16, 1) + 10_000))


def test_blocks_are_pages_of_the_pool_each_once():
    pages = blocks(20, 33, 1)
    assert len(set(pages.tolist())) == 20 and pages.min() >= 0 and pages.max() < 33


def test_a_store_that_only_the_command_names_is_what_the_flags_would_have_named(tmp_path):
    """With SGLang's own keys among its settings, which no store knows; others are settings of a store alone."""
    config = RealConfig(ServerArgs(page_size=16, max_total_tokens=512), host_reserve_bytes=1 << 20)
    stores = {"lmdb": {"path": "here", "prefetch_threshold": 32}, "redis": {"url": "redis://127.0.0.1:1/0"}}
    bench = _Bench(config, Wanted(stores), tmp_path)
    assert bench._stores == {"lmdb": {"path": "here"}, "redis": stores["redis"]}
    storage = bench.made.resolved.storage
    assert storage is not None and (storage.backend, storage.prefetch_threshold) == ("lmdb", 32)
    named = replace(config, args=replace(config.args, hicache_storage_backend="lmdb"))
    assert _Bench(named, Wanted({"lmdb": {"path": "there"}}), tmp_path)._stores == {"lmdb": {"path": "there"}}
