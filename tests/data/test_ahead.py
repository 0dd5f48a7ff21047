"""Work beside work: the same order, and no error or item is lost."""

import threading

import pytest

from fedeqx.data._ahead import Behind, ahead


def test_ahead_gives_the_same_items_from_another_thread():
    def items():
        for number in range(50):
            yield number, threading.current_thread()

    numbers, threads = zip(*ahead(items()), strict=True)
    assert numbers == tuple(range(50))
    assert threading.current_thread() not in threads
    assert list(ahead(iter([]))) == []


def test_ahead_raises_what_the_items_raise_in_its_place():
    def items():
        yield 1
        raise OSError("the disk is gone")

    given = ahead(items())
    assert next(given) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(given)


def test_ahead_ends_its_thread_when_it_is_left():
    threads = threading.active_count()
    some = ahead(iter(range(1000)))
    assert [next(some), next(some)] == [0, 1]
    some.close()
    assert threading.active_count() == threads


def test_behind_keeps_the_order_and_raises_at_the_next_call():
    done, behind = [], Behind()
    for number in range(20):
        behind.call(done.append, number)
    behind.wait()
    assert done == list(range(20))

    def fail():
        raise OSError("the disk is full")

    behind.call(fail)
    with pytest.raises(OSError, match="the disk is full"):
        behind.call(done.append, 20)
    behind.wait()
    behind.close()
    assert done == list(range(20))
