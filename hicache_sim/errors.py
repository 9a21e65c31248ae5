"""What a simulation raises when it is broken itself.

Apart from the rest because a compiled class cannot derive from an exception.
"""


class Stuck(RuntimeError):
    """Requests wait, and nothing is in flight that could wake them: law L5 is broken."""
