"""A pool of threads."""

import threading

import pytest

from mnemorank._internal.threads import Workers


@pytest.fixture
def workers():
    workers = Workers(2, "test")
    yield workers
    workers.shutdown()


def test_results_are_in_the_order_of_the_items(workers):
    barrier = threading.Barrier(2, timeout=30)

    def double(number):
        if number < 2:
            barrier.wait()  # passes only if two threads are at work
        return 2 * number

    assert workers.map(double, range(9)) == [2 * number for number in range(9)]
    assert workers.map(double, []) == []


def test_an_error_is_raised_and_no_more_items_are_begun(workers):
    begun = []

    def fail(number):
        begun.append(number)
        raise KeyError(number)

    with pytest.raises(KeyError):
        workers.map(fail, range(100))
    assert len(begun) <= 2
    assert workers.map(str, [1]) == ["1"]


def test_calls_of_many_threads_do_not_mix(workers):
    results = {}
    callers = [
        threading.Thread(target=lambda base=base: results.update({base: workers.map(lambda n: n + base, range(50))}))
        for base in range(0, 500, 100)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert results == {base: [n + base for n in range(50)] for base in range(0, 500, 100)}
