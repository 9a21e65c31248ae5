"""What the control plane raises: broken contracts, never bad input.

Apart from the rest because a compiled class cannot derive from an exception.
"""


class ProtocolError(RuntimeError):
    """A plane broke its contract: an unknown or repeated completion."""


class SlotError(RuntimeError):
    """A slot was freed or handed on by somebody who does not own it."""
