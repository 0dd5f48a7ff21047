"""A plan to read: a table, and a diagram."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ._flops import Work, work_of
from ._stages import Stage

if TYPE_CHECKING:
    from ._plan import Message, Plan, Round


def table(plan: "Plan") -> str:
    """One block a round: what goes down, what a client computes and keeps, what comes up."""
    count = len(plan.rounds)
    lines = [f"{plan.name}: {count} {'round' if count == 1 else 'rounds'}"]
    for number, round in enumerate(plan.rounds, start=1):
        rows = list(_rows(round))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines += ["", f"round {number}"]
        lines += [
            "  "
            + "  ".join(cell.ljust(w) for cell, w in zip(row[:4], widths, strict=True)).rstrip()
            for row in rows
        ]
    if plan.end.equations:
        lines += ["", f"end\n  server  computes  {_computation(plan.end)}"]
    down, up = show_bytes(plan.bytes_down), show_bytes(plan.bytes_up)
    lines += ["", f"in total, for each client: {down} down, {up} up"]
    return "\n".join(lines)


def _rows(round: "Round") -> Iterator[tuple[str, str, str, str]]:
    if round.server.equations:
        yield "server", "computes", _computation(round.server), ""
    for m in round.broadcasts:
        yield "down", m.name, _type(m), show_bytes(m.bytes)
    yield "client", "computes", _computation(round.client), ""
    for m in round.kept:
        yield "client", f"keeps {m.name}", _type(m), show_bytes(m.bytes)
    for m in round.reductions:
        yield f"up, {m.how}", m.name, _type(m), show_bytes(m.bytes)


def mermaid(plan: "Plan") -> str:
    """A sequence diagram, with the sum of what is sent on each arrow."""
    lines = ["sequenceDiagram", "    participant S as server", "    participant C as each client"]
    for number, round in enumerate(plan.rounds, start=1):
        lines.append(f"    Note over S,C: round {number}")
        if round.server.equations:
            lines.append(f"    S->>S: {_computation(round.server)}")
        if round.broadcasts:
            lines.append(f"    S->>C: broadcast {_arrow(round.broadcasts)}")
        lines.append(f"    C->>C: {_computation(round.client)}")
        if round.kept:
            lines.append(f"    Note over C: keeps {_arrow(round.kept)}")
        for how in dict.fromkeys(m.how for m in round.reductions):
            lines.append(f"    C->>S: {how} {_arrow(m for m in round.reductions if m.how == how)}")
    if plan.end.equations:
        lines.append(f"    S->>S: {_computation(plan.end)}")
    return "\n".join(lines)


def _arrow(messages: Iterable["Message"]) -> str:
    messages = list(messages)
    total = show_bytes(sum(m.bytes for m in messages))
    return f"{len(messages)} {'array' if len(messages) == 1 else 'arrays'}, {total}"


def _type(message: "Message") -> str:
    return f"{message.dtype}[{','.join(map(str, message.shape))}]"


def _computation(stage: Stage) -> str:
    work: Work = work_of(stage.equations)
    least = "" if work.exact else "at least "
    return f"{least}{work.operations:,} operations, {_scaled(work.flops, 1000, 'FLOPs')}"


def show_bytes(n: int) -> str:
    return _scaled(n, 1024, "B")


def _scaled(n: int, base: int, unit: str) -> str:
    prefixes = ["", "K", "M", "G", "T", "P"]
    value, i = float(n), 0
    while value >= base and i < len(prefixes) - 1:
        value, i = value / base, i + 1
    binary = "i" if base == 1024 and i else ""
    return f"{value:.0f} {unit}" if i == 0 else f"{value:.1f} {prefixes[i]}{binary}{unit}"
