"""Health of clients and of the process that serves them, for /diagnostics."""

from collections.abc import Iterator, Mapping

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from kairos_ros.doors.clients import Member


def diagnostics(
    port: int, clients: Mapping[str, Member], counters: Mapping[str, int], most: int, now_ns: int
) -> Iterator[DiagnosticStatus]:
    """One status of the process, and one for each client.

    port: that it listens on, since there may be a process for each kind of client.
    counters: of all connections. most: clients at a time.
    """
    full = len(clients) >= most
    text = f"{len(clients)} of {most} clients"
    yield _status(
        f"kairos doors {port}: clients",
        "",
        DiagnosticStatus.WARN if full else DiagnosticStatus.OK,
        f"{text}; raise --max-clients" if full else text,
        {"clients": len(clients)} | dict(counters),
    )
    for robot, client in clients.items():
        yield _of_client(robot, client, now_ns)


def _of_client(robot: str, client: Member, now_ns: int) -> DiagnosticStatus:
    report = client.report(now_ns)
    level, text = DiagnosticStatus.OK, report.state.text
    if report.misfit:
        level, text = DiagnosticStatus.ERROR, f"cannot be served: {report.misfit}"
    elif report.why_no_server:
        level, text = DiagnosticStatus.WARN, f"waits for a server: {report.why_no_server}"
    values = {
        "state": report.state.text,
        "task": report.instruction,
        "client": client.peer,
        "dialect": client.dialect,
        "server": str(report.server or ""),
        "last error": client.last_error,
    }
    return _status(f"kairos: {robot}", robot, level, text, values | dict(client.counters))


def _status(
    name: str, hardware: str, level: bytes, text: str, values: Mapping[str, object]
) -> DiagnosticStatus:
    pairs = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
    return DiagnosticStatus(
        name=name, hardware_id=hardware, level=level, message=text, values=pairs
    )
