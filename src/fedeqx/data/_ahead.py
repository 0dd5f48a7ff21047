"""Two kinds of work side by side, such as reading and counting: Arrow and NumPy free the GIL."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, final

_T = TypeVar("_T")
_END: Any = object()


def ahead(items: Iterator[_T]) -> Generator[_T, None, None]:
    """The same items, the next of which is made in a thread while the last is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="fedeqx-ahead") as pool:
        coming = pool.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, items, _END)
            yield item


@final
class Behind:
    """Calls functions in a thread, in their order, one behind the caller.

    What one raises is raised by the next `call`, or by `wait`.
    """

    def __init__(self):
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fedeqx-behind")
        self._last: Future[None] | None = None

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Wait for the call before, and begin this one."""
        self.wait()
        self._last = self._pool.submit(function, *arguments)

    def wait(self) -> None:
        """Until all calls are done."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """End the thread after what it is doing."""
        self._pool.shutdown(wait=True)
