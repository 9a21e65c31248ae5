"""Real runs and the simulated one side by side: how far the simulator is off, beside how far real runs are from each
other.

Rules of this package
- Real runs are processes of their own, of the command anybody can type; nothing here needs torch.
- What is compared are the figures of `summary.json`, which both worlds define alike.
"""
