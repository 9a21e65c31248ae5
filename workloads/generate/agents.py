"""Agents that call tools, and now and then send out sub-agents and wait for them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ..request import Request
from .base import Generator, Prompt, Run, TokenIds, length, numbered, pause, repeats, shared_runs, zipf


@dataclass(frozen=True, kw_only=True)
class Agents(Generator):
    """Each step's prompt is the agent's whole history and the result of its last tool call.

    kinds             different agents, each with its own system prompt and tools; popularity as k ** -zipf_exponent.
    system_tokens     mean length of those. sub_system_tokens: the same for the sub-agents of a kind.
    steps, sub_steps  mean calls of an agent, of a sub-agent. task_tokens: mean length of what they are told to do.
    result_tokens     mean length of a tool's result. answer_tokens: of a step's answer, which calls the next tool.
    tool_s            mean time of a tool.
    spawn_chance      of a step to send out sub-agents; sub_agents: how many then, in the mean. They run side by side,
                      share their system prompt, and the agent goes on after the slowest.
    summary_tokens    mean length of what one sub-agent reports.
    """

    name: str = "agents"
    count: int = 50
    rate_per_s: float = 0.2
    kinds: int = 4
    zipf_exponent: float = 1.0
    system_tokens: float = 12_000
    sub_system_tokens: float = 8_000
    steps: float = 20
    sub_steps: float = 8
    task_tokens: float = 800
    result_tokens: float = 1_200
    answer_tokens: float = 200
    tool_s: float = 3
    spawn_chance: float = 0.05
    sub_agents: float = 2
    summary_tokens: float = 600

    def talks(self, ids: TokenIds, rngs: Iterator[random.Random]) -> Iterator[list[Request]]:
        systems = shared_runs(ids, self.seed, self.kinds, self.system_tokens, self.sigma)
        sub_systems = shared_runs(ids, self.seed + 1, self.kinds, self.sub_system_tokens, self.sigma)
        popularity = zipf(self.kinds, self.zipf_exponent)
        for rng in rngs:
            kind = rng.choices(range(len(systems)), cum_weights=popularity)[0]
            turns: list[Request] = []
            self._run(turns, rng, Prompt(ids, systems[kind]), ids, sub_systems[kind])
            yield turns

    def _run(self, turns: list[Request], rng: random.Random, prompt: Prompt, ids: TokenIds, sub_system: Run) -> None:
        """The main agent's steps, with those of its sub-agents between them."""
        new = self._length(rng, self.task_tokens)
        at_s, last, think_s = 0.0, None, 0.0
        for _ in range(repeats(rng, self.steps)):
            step = numbered(turns, prompt.ask(new, self._length(rng, self.answer_tokens), at_s, last, think_s))
            last, ended_s = step, self._ended_s(step)
            new, think_s = self._length(rng, self.result_tokens), pause(rng, self.tool_s)
            if rng.random() < self.spawn_chance:
                reports = [
                    self._sub_run(turns, rng, Prompt(ids, sub_system), step)
                    for _ in range(repeats(rng, self.sub_agents))
                ]
                last = max(reports, key=self._ended_s)
                ended_s, new, think_s = self._ended_s(last), sum(report.output_tokens for report in reports), 0.0
            at_s = ended_s + think_s

    def _sub_run(self, turns: list[Request], rng: random.Random, prompt: Prompt, parent: Request) -> Request:
        """A sub-agent's steps; the last one's answer is its report."""
        steps = repeats(rng, self.sub_steps)
        new, at_s, last, think_s = self._length(rng, self.task_tokens), self._ended_s(parent), parent, 0.0
        for left in reversed(range(steps)):
            answer = self._length(rng, self.answer_tokens if left else self.summary_tokens)
            last = numbered(turns, prompt.ask(new, answer, at_s, last, think_s))
            new, think_s = self._length(rng, self.result_tokens), pause(rng, self.tool_s)
            at_s = self._ended_s(last) + think_s
        return last

    def _length(self, rng: random.Random, mean: float) -> int:
        return max(1, length(rng, mean, self.sigma))

    def _ended_s(self, turn: Request) -> float:
        return turn.arrival_s + turn.output_tokens * self.answer_s_per_token
