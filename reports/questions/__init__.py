"""Questions that people asked in public, answered by replays: one folder each, rerun by one command.

    python -m reports.questions            # all of them, then README.md
    python -m reports.questions small_l2   # one

A folder holds `question.py` (what is replayed, drawn and said), `results.json`, `figure.png` and `answer.md`; a trace
of its own where no shipped one fits. All but the trace and `question.py` is written by the command.

Rules of this package
- Simulated time is deterministic: the same code gives the same figures, on any machine. Tests rerun a few cases of each
  and ask for equality.
- Sentences take their numbers from the results, and their claims are checked when they are written.
"""
