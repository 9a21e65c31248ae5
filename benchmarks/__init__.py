"""How fast `hicache` is, beside the programs it is compared with: `python -m benchmarks`, or one module at a time.

Rules of this folder
- Every run is a fresh process, told apart from the others by its command line; CPU seconds, not wall clock, are what
  is compared, since other jobs share the machine.
- Those that are compared take turns in one run, on the same input, and their results must agree before a ratio is
  written down.
- The driver stays small and imports nothing large before the last run: Linux starts a child's peak memory at its
  parent's.
"""
