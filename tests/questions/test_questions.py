"""The questions' folders are what the code gives: cheap cases rerun to equal figures, pages and drawings are theirs."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from click.testing import CliRunner
from matplotlib.image import imread
from PIL import Image

from hicache_sim.cli import main
from hicache_sim.sweeps.ask import Ask
from reports.questions import pages
from reports.questions.catalogue import QUESTIONS, find
from reports.questions.question import FOLDER, ROOT, Question, command, rounded

everyone = pytest.mark.parametrize("question", QUESTIONS.values(), ids=list(QUESTIONS))


def test_issue_5s_questions_are_there() -> None:
    assert set(QUESTIONS) == {
        "ratio_and_hit_rate",
        "small_l2",
        "first_seen_prefixes",
        "write_back_watermark",
        "best_effort_or_timeout",
        "page_size",
    }


def test_an_unknown_question_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"known are .*page_size"):
        find("page-size")


@everyone
def test_cheap_cases_give_the_stored_figures(question: Question) -> None:
    stored = pages.figures_of(pages.read(question))
    assert question.cheap
    for case in question.cheap:
        assert question.run(case) == stored[case]


@everyone
def test_all_cases_are_stored_with_their_commands(question: Question) -> None:
    cases = pages.read(question)["cases"]
    assert {name: case["command"] for name, case in cases.items()} == {
        name: command(ask) for name, ask in question.cases.items()
    }


@everyone
def test_pages_say_what_the_results_say(question: Question) -> None:
    """Claims included: `answer` checks them."""
    results = pages.read(question)
    assert (question.folder / pages.ANSWER).read_text(encoding="utf-8") == pages.answer_page(question, results)
    answer = question.answer(pages.figures_of(results))
    assert len(re.findall(r"(?<!v0)\.(?=\s+[A-Za-z]|$)", answer)) == 2, "two sentences"
    assert answer in (FOLDER / "README.md").read_text(encoding="utf-8")


@everyone
def test_the_figure_was_drawn_from_the_results(question: Question) -> None:
    path = question.folder / pages.FIGURE
    with Image.open(path) as image:
        assert image.info["Description"] == pages.digest(pages.figures_of(pages.read(question)))
    pixels = imread(path)
    assert pixels.shape[1] > 1000
    assert pixels[..., :3].std() > 0.05, "not blank"


def test_changed_results_are_noticed(tmp_path: Any) -> None:
    question = find("small_l2")
    found = {name: dict(figures) for name, figures in pages.figures_of(pages.read(question)).items()}
    case = "synthetic, write_through, L2 = 0.5 x L1"
    found[case]["hit_rate"] += 0.05
    assert pages.digest(found) != pages.digest(pages.figures_of(pages.read(question)))
    with pytest.raises(AssertionError):
        question.answer(found)


@pytest.mark.parametrize("name", ["first_seen_prefixes", "ratio_and_hit_rate"])
def test_a_command_by_hand_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    question = find(name)
    case = question.cheap[0]
    done = CliRunner().invoke(main, [*shlex.split(command(question.cases[case]))[1:], "--json"])
    assert done.exit_code == 0, done.output
    by_hand, (workload, schedule) = json.loads(done.stdout), question.cases[case].workload()
    assert by_hand["requests"]["done"] == len(list(workload.requests(schedule))[: question.cases[case].limit])
    stored = pages.figures_of(pages.read(question))[case]
    same = {
        "first_seen_prefixes": ("stored_tokens", by_hand["writes"]["stored_tokens"]),
        "ratio_and_hit_rate": ("hit_rate", rounded(by_hand["hit_rates"]["total"])),
    }
    figure, value = same[name]
    assert stored[figure] == value


def test_commands_name_every_option_that_is_set() -> None:
    ask = Ask(
        "chat",
        {"page_size": 64, "enable_hierarchical_cache": True},
        rules={"caches_output": False},
        sequential=True,
        parameters={"count": 5},
        speed=0.5,
    )
    line = command(ask)
    for part in ("--page-size 64", "--enable-hierarchical-cache", "--rule caches_output=False", "--sequential"):
        assert part in line
    assert "--set count=5" in line and "--speed 0.5" in line
