"""What ends a command with a message instead of a traceback."""


class CommandError(Exception):
    """A mistake that its message explains, with what to do about it."""
