"""What ends a command with a message instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """A mistake that its message explains, with what to do about it."""


@contextmanager
def explained(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds are the user's to mend: their messages, on one line, are the answer."""
    try:
        yield
    except kinds as error:
        raise CommandError(" ".join(str(error).split())) from error
