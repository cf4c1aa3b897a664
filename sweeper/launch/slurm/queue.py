"""Runs in SLURM's queue, from the tickets and squeue, without a running sweep."""

from typing import Any

from sweeper.launch.slurm import commands
from sweeper.launch.slurm.tickets import Jobs, Ticket, Tickets
from sweeper.store.ledger import Ledger


def waiting(ledger: Ledger) -> list[dict[str, Any]]:
    """The runs that were submitted, have not ended and are not running, with SLURM's state.

    `state` is queued, gone (the job left the queue: the same command submits the run again),
    submitted where SLURM cannot be asked, or outdated (another version of this code did it).
    """
    tickets = Tickets(ledger)
    known = tickets.all()
    if not known:
        return []
    active = {run_id for run_id, _ in ledger.active()}
    queue = commands.queue()
    jobs = None if queue is None else Jobs(queue, tickets)
    return [
        _line(ledger, ticket, tickets, jobs)
        for run_id, ticket in known.items()
        if run_id not in active
    ]


def _line(ledger: Ledger, ticket: Ticket, tickets: Tickets, jobs: Jobs | None) -> dict[str, Any]:
    job = jobs.of(ticket) if jobs else None
    if jobs is None:
        state, why = "submitted", "squeue does not respond here"
    elif job:
        state, why = "queued", job.reason
    elif jobs.has(ticket):
        state, why = "queued", "is just being submitted"
    else:
        state, why = "gone", "its job left the queue; repeat the sweep"
    try:
        point, epochs = ticket.spec.point, ticket.spec.epochs
    except ValueError as error:
        point, epochs, state, why = "", 0, "outdated", str(error)
    return {
        "run_id": ticket.run_id,
        "attempt": max(ticket.number, ledger.last_attempt(ticket.run_id)),
        "state": state,
        "why": why,
        "job": f"{tickets.job_of(ticket.submission)}_{ticket.index}",
        "point": point,
        "epochs": epochs,
        "config": dict(ticket.config),
    }
