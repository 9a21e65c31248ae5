"""`hicache validate`: real runs in processes of their own, the simulated one, a verdict, and files that hold them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from click.testing import CliRunner

from hicache_sim.cli import main

from .files import content, write

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


SIMULATED = WORDS.replace("--host-reserve 0.1 --model-scale 100000 ", "")


def runs_of(file, factor):
    """Stands for real runs: the simulation on `file`, its TTFT times `factor`."""
    from hicache_sim.validate.runs import RealRun

    def run(words, folder):
        done = CliRunner().invoke(main, ["replay", *SIMULATED.split(), "--hardware", file, "--out", str(folder)])
        assert done.exit_code == 0, done.output
        made = json.loads((folder / "summary.json").read_text())
        for at in ("mean_s", "p50_s", "p90_s", "p99_s"):
            made["latency"]["ttft"][at] *= factor
        return RealRun(folder, made, 1.0, None)

    return run


def test_beyond_its_tolerance_it_ends_with_1(tmp_path, monkeypatch):
    """Real runs that were slower by far than the machine of the file."""
    from hicache_sim.validate import api

    file = write(tmp_path / "m.json")
    monkeypatch.setattr(api, "run", runs_of(file, 1.2))
    line = ["validate", *WORDS.split(), "--hardware", file, "--out"]
    done = CliRunner().invoke(main, [*line, str(tmp_path / "a")])
    assert done.exit_code == 1 and "BEYOND" in done.output
    done = CliRunner().invoke(main, [*line, str(tmp_path / "b"), "--tolerance-ttft", "25"])
    assert done.exit_code == 0, done.output


def test_measured_between_the_runs_the_machine_is_the_median(tmp_path, monkeypatch):
    from hicache_sim.commands import validate as command
    from hicache_sim.validate import api

    asked = []

    def calibrate(words, file, seconds):
        asked.append((words, seconds))
        made = content()
        made["compute"]["prefill"]["a"] = (1e-3, 9e-3, 2e-3)[len(asked) - 1]
        return made

    file = write(tmp_path / "m.json")
    monkeypatch.setattr(command, "calibrate", calibrate)
    monkeypatch.setattr(api, "run", runs_of(file, 1.0))
    line = ["validate", *WORDS.split(), "--calibrate", "5", "--tolerance-ttft", "1e9", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    made = json.loads((tmp_path / "out" / "calibration.json").read_text())
    assert made["compute"]["prefill"] == content()["compute"]["prefill"] | {"a": 2e-3}
    words, seconds = asked[0]
    assert len(asked) == 3 and seconds == 5.0 and "--hicache-storage-backend" in words and "--set" not in words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give --hardware FILE, or --calibrate SECONDS"),
        ("--hardware {file} --calibrate 5", "give --hardware FILE, or --calibrate SECONDS"),
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
