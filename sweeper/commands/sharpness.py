"""`sweeper sharpness`: measure the curvature of the loss at the kept checkpoints of runs.

The largest eigenvalue of the Hessian, and the curvature along the gradients of batches, with
BatchNorm in evaluation mode. Written to RESULTS/sharpness, a parquet file for each run.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from sweeper.commands.refusals import refuse
from sweeper.commands.status import find_run
from sweeper.console.printing import HintingParser, note, say
from sweeper.launch.ask_process import ask_process
from sweeper.launch.fork_server import ForkServerDied, open_fork_server
from sweeper.spec.outcomes import DONE
from sweeper.spec.worker_args import KEPT
from sweeper.store.attempt import Attempt
from sweeper.store.checkpoint_checksum import is_sound
from sweeper.store.ledger import Ledger
from sweeper.store.table_files import write_table


def main(arguments: Sequence[str]) -> int:
    """Measure and print every kept checkpoint of the runs; return the exit code."""
    parser = HintingParser(prog="sweeper sharpness", description=__doc__)
    parser.add_argument("runs", nargs="+", help="run ids, or their beginnings; `status` shows them")
    parser.add_argument("--results", default="results", help="their folder")
    options = parser.parse_args(arguments)
    ledger = Ledger(Path(options.results))
    rows: list[dict[str, Any]] = []
    try:
        if not find_spec("curvlinops"):
            msg = (
                "sharpness needs curvlinops, which is not installed. "
                "Install it with: pip install 'batch-sweeper[curvature]'"
            )
            raise ValueError(msg)
        kept = [_find_kept(ledger, run) for run in options.runs]
        open_fork_server()
        for attempt, checkpoints in kept:
            path = ledger.results / "sharpness" / f"{attempt.spec.run_id}.parquet"
            first = len(rows)
            for checkpoint in checkpoints:  # each is kept, should the next fail
                rows.append(_measure(attempt, checkpoint))
                write_table(pa.Table.from_pylist(rows[first:]), path)
    except (ValueError, ForkServerDied) as error:
        return refuse(error, "Not all was measured.")
    say(pd.DataFrame(rows).to_string(index=False, float_format="{:.4g}".format))
    return DONE


def _find_kept(ledger: Ledger, run: str) -> tuple[Attempt, Sequence[Path]]:
    """A run's last attempt, and its checkpoints in their order; ValueError if it has none."""
    run_id = find_run(ledger, run)
    last = ledger.last_attempt(run_id) if run_id else 0
    if not (attempt := Attempt.load(ledger, run_id, last) if last else None):
        msg = f"a run must be named by its id; got {run}. `sweeper status` shows the ids."
        raise ValueError(msg)
    paths = list(ledger.run_folder(run_id).glob(KEPT.format("*")))
    paths.sort(key=lambda path: float(path.stem.partition("-")[2]))
    paths += [attempt.checkpoint] if attempt.checkpoint.exists() else []
    if not paths or not all(map(is_sound, paths)):
        msg = (
            f"a run must have kept checkpoints, none damaged; got {run_id}. Train it with "
            "keep_checkpoint=all, or keep_checkpoint=[1,2] (rerun=all if it has a result)."
        )
        raise ValueError(msg)
    return attempt, paths


def _measure(attempt: Attempt, checkpoint: Path) -> dict[str, Any]:
    """A row of the table; ValueError if the module's code fails."""
    run_id, config = attempt.spec.run_id, attempt.spec.config.resolved
    note(f"Measuring {run_id}, {checkpoint.name} ...")
    found = ask_process("sharpness", [{"config": config, "at": str(checkpoint)}])
    measured = next(iter(found.values), None)
    if measured is None:
        raise ValueError(found.last_line)
    epochs = attempt.spec.batch_plan.position(measured["step"])
    return {"run_id": run_id, "epochs": epochs, **measured}
