"""`hicache validate`: real runs in processes of their own, the simulated one, a verdict, and files that hold them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from hicache_sim.cli import main

from .files import write

WORDS = (
    "chat --limit 3 --sequential --set system_prompts=1 --set think_s=0 --set rate_per_s=50 --set sigma=0 "
    "--set turns=1 --set first_tokens=40 --set system_tokens=64 --set answer_tokens=3 --page-size 16 "
    "--max-total-tokens 1024 --hicache-ratio 1.5 --host-reserve 0.1 --model-scale 100000 --hicache-storage-backend file"
)


def test_three_real_runs_and_one_simulated(tmp_path):
    out = tmp_path / "out"
    more = ["--hardware", write(tmp_path / "m.json"), "--out", str(out), "--tolerance-ttft", "1e9"]
    done = CliRunner().invoke(main, ["validate", *WORDS.split(), *more])
    assert done.exit_code == 0, done.output
    found = json.loads((out / "validation.json").read_text())
    assert found["passes"] and len(found["runs"]) == 3
    assert found["line"].startswith("hicache run chat ") and "--hardware" not in found["line"]
    figures = {(each["group"], each["figure"]): each for each in found["figures"]}
    hits = figures["hits", "all levels"]
    assert hits["real"] == [hits["simulated"]] * 3 and hits["simulated"] > 0
    assert figures["bytes", "L2 to L3"]["difference"] == 0
    assert all(len(each["real"]) == 3 for each in found["figures"])
    page = (out / "validation.html").read_text()
    assert "Real and simulated" in page and "real 3" in page and "http://" not in page.split("<script>")[0]
    assert "| TTFT: p50 |" in (out / "validation.md").read_text()
    assert (out / "ttft.png").stat().st_size > 1000
    assert {each.name for each in out.iterdir() if each.is_dir()} == {"real-1", "real-2", "real-3", "simulated"}


def test_beyond_its_tolerance_it_ends_with_1(tmp_path, monkeypatch):
    """Real runs that were slower by far than the machine of the file."""
    from hicache_sim.validate import api
    from hicache_sim.validate.runs import RealRun

    def slower(words, folder):
        made = json.loads((folder.parent / "simulated" / "summary.json").read_text())
        for at in ("mean_s", "p50_s", "p90_s", "p99_s"):
            made["latency"]["ttft"][at] *= 1.2
        folder.mkdir()
        for each in (folder.parent / "simulated").iterdir():
            (folder / each.name).write_bytes(each.read_bytes())
        return RealRun(folder, made, 1.0, None)

    monkeypatch.setattr(api, "run", slower)
    line = ["validate", *WORDS.split(), "--hardware", write(tmp_path / "m.json"), "--out"]
    done = CliRunner().invoke(main, [*line, str(tmp_path / "a")])
    assert done.exit_code == 1 and "BEYOND" in done.output
    done = CliRunner().invoke(main, [*line, str(tmp_path / "b"), "--tolerance-ttft", "25"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--hardware h200", "not a file that hicache calibrate has written"),
        ("--hardware {file} --runs 2", "--runs 2: at least 3"),
        ("--hardware {file} --model-scale 5e6", "--model-scale 5e+06"),
        ("--hardware {file} --model-path qwen3-8b", "the model that was measured is llama-3.1-8b"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(tmp_path, words, message):
    file = write(tmp_path / "m.json")
    line = f"validate chat --page-size 16 --out {tmp_path / 'x'} {words.format(file=file)}"
    done = CliRunner().invoke(main, line.split())
    assert done.exit_code == 2 and message in done.output and "Traceback" not in done.output
