"""Whom a worker works for: who is there, who was never heard of again."""

from kairos_ros.engine.worker.clients import ASK_AFTER_S, SILENT_S, Clients


def busy(*names, at=0.0):
    clients = Clients()
    for name in names:
        clients.heard(name, at)
        clients.took(name)
    return clients


def test_a_client_is_told_of_the_batches_of_others():
    clients = busy(b"a", b"b")
    clients.took(b"b")
    assert (clients.others(b"a"), clients.others(b"b"), clients.others(b"c")) == (2, 1, 3)
    clients.answered(b"b")
    assert clients.others(b"a") == 1


def test_only_silent_clients_with_batches_are_looked_after():
    clients = busy(b"a", b"b")
    clients.heard(b"idle", 0.0)
    clients.heard(b"b", 1.0)
    assert clients.silent(ASK_AFTER_S) == []
    assert clients.silent(ASK_AFTER_S + 0.5) == [(b"a", ASK_AFTER_S + 0.5)]


def test_one_that_left_is_not_asked_after_again_until_it_speaks():
    clients = busy(b"a")
    clients.leave(b"a")
    assert clients.left(b"a")
    assert clients.silent(2 * SILENT_S) == []
    clients.heard(b"a", 2 * SILENT_S)
    assert not clients.left(b"a")
    assert clients.silent(4 * SILENT_S) == [(b"a", 2 * SILENT_S)]


def test_a_silent_client_is_remembered_for_as_long_as_it_has_batches():
    clients = busy(b"a", b"b")
    clients.answered(b"b")
    clients.silent(2 * SILENT_S)
    clients.took(b"a")
    clients.answered(b"a")
    assert not clients.left(b"a")
    assert not clients.left(b"b")
