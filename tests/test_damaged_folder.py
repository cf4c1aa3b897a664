"""Each file of a results folder, damaged in some way: every command goes on with the others."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

import analysis.cli
from sweeper.commands import show_plan, status, user_facts
from sweeper.commands.sweep import run_sweep
from sweeper.commands.tune import run_tuning
from sweeper.launch.local.launcher import run_here
from sweeper.launch.local.slots import Machine
from sweeper.launch.queue.queue import Queue
from sweeper.planning.plan import Task
from sweeper.planning.seconds import Timing, store_timings
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt
from sweeper.store.lease import LEASE, release, this_process
from sweeper.store.ledger import Ledger
from sweeper.store.publish import publish_json

QUADRATIC = [
    "+experiment=noisy_quadratic", "data.num_train_examples=1024", "data.length=8", "epochs=1",
]  # fmt: skip
GRID = [*QUADRATIC, "batch=256,512", "base_lr=0.1,0.3"]
OWN = [
    "module._target_=users.Module", "data._target_=users.DataModule", "batch=32",
    "base_batch=32", "metric=val/mse/dataloader_idx_0", "metric_mode=min", "epochs=1", "warmup=0",
]  # fmt: skip
BY_LOSS = ["metric=val_loss", "metric_mode=min"]
#: How many of some thousand cases are tried, each with a file and a damage of its own.
_TRIED, _SEED = (int(os.environ.get(f"SWEEPER_DAMAGED_{name}", n)) for name, n in
                 {"FILES": "12", "SEED": "0"}.items())  # fmt: skip
_DEEP = 99_999
JSON = [
    "",
    "null",
    "1",
    "[]",
    "{}",
    '"x"',
    "nan",
    "[" * _DEEP,
    '{"a":' * _DEEP,
    "[null]",
    '{"a":1}',
]


@pytest.fixture(scope="module")
def made(tmp_path_factory, sweep_here, grid, loader, sweeper_settings):
    """A folder with a file of each kind."""
    results = tmp_path_factory.mktemp("made") / "results"
    for words in (GRID, OWN):
        assert sweep_here(results, *words, "keep_checkpoint=true") == 0
    _tune(results, loader, sweeper_settings("hydra/sweeper=optuna"))
    assert show_plan.main([*GRID, "--memory", f"results={results}"]) == 0
    timing = Timing(accumulation_steps=1, step_s=0.1, start_s=1.0, between_s=0.1)
    store_timings("a kind", "cpu", [timing], results)
    _leave_unfinished(results, *map(run_spec, grid(*QUADRATIC, "batch=256", "seed=5,6")))
    (results / "questions").mkdir()
    question = {"question": "best warmup", "seeds": [0], "looks_at": [3]}
    publish_json(results / "questions" / "a-1.json", question)
    return results


def _tune(results, loader, settings):
    """Two trials."""
    words = [*QUADRATIC, "batch=256", "base_lr=interval(0.01,1)", "n_trials=2", *BY_LOSS]
    run_tuning(
        [*words, f"results={results}"],
        loader,
        settings,
        lambda tasks, ledger: run_here(tasks, ledger, Machine(cores=2, jobs=1)),
    )


def _leave_unfinished(results, abandoned, queued):
    """An attempt of a dead process, a run in a queue, and a list of pending runs."""
    ledger, dead = Ledger(results), asdict(this_process()) | {"born": "1"}
    attempt = Attempt.begin(abandoned, ledger, 1)
    release(attempt.folder)
    publish_json(attempt.folder / LEASE, dead)
    for name in ("progress.jsonl", "record-0.json", "log.txt", "step-progress.json"):
        shutil.copy(ledger.attempt_folder(min(ledger.ended()), 1) / name, attempt.folder)
    Queue(ledger, "slurm/1x1").add([Task(spec=queued, number=1)], "x")
    pending = {"holder": asdict(this_process()), "runs": [{"run_id": "a" * 12, "attempt": 1}]}
    publish_json(results / ".pending-host-1.json", pending)


def damages(path: Path, draw: random.Random) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Ways to damage a file or a folder, by name."""

    def link(there: Path) -> None:
        shutil.rmtree(there) if there.is_dir() else there.unlink()
        there.symlink_to(there.name)

    yield "link", link
    if path.is_dir():
        return
    content = path.read_bytes()
    for number in range(3 if content else 0):
        changed = bytearray(content)
        changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        yield f"flip {number}", lambda file, changed=changed: file.write_bytes(changed)
    yield "cut", lambda file: file.write_bytes(content[: len(content) * 2 // 3])
    yield "binary", lambda file: file.write_bytes(draw.randbytes(100))
    yield "folder", lambda file: (file.unlink(), file.mkdir())
    for text in [*JSON, *_odd_values(path)]:
        yield text[-40:], lambda file, text=text: file.write_text(f"{text}\n")


def _odd_values(path: Path) -> Iterator[str]:
    """The JSON of a file with a value of another type, or without a key."""
    if path.suffix not in (".json", ".jsonl", ".journal"):
        return
    lines = path.read_text().splitlines()
    parsed = json.loads(lines[0] if path.suffix != ".json" else "".join(lines))
    for key in parsed if isinstance(parsed, dict) else ():
        yield json.dumps({k: v for k, v in parsed.items() if k != key})
        for value in (None, [], {}, "x", -1, 1e308, 10**400, [None], [{}], {"a": {}}, True):
            yield json.dumps({**parsed, key: value})


def start_nothing(*_):
    """A launcher whose runs never start."""
    yield from ()


def commands(results: Path, path: Path, grid) -> dict[str, Callable[[], object]]:
    """The commands that read the folder, without those that cannot meet the file."""

    def sweep():
        return run_sweep(grid(*GRID, f"results={results}"), start_nothing)

    def plan(*words):
        return show_plan.main([*words, f"results={results}", "--no-memory", "--json"])

    def analyse(name, *words):
        return analysis.cli.main([name, str(results), *words])

    by_loss = ["--metric", "val_loss", "--metric-mode", "min"]
    of_rows = {
        "estimates": lambda: analyse("estimates", *by_loss),
        "table": lambda: analyse("table", *by_loss, "--out", f"{results}-t"),
        "figures": lambda: analyse("figures", *by_loss, "--out", f"{results}-f"),
    }
    run_ids = [p.name for p in (results / "attempts").glob("*")]
    return {
        "status": lambda: status.main(["--results", str(results)]),
        "status json": lambda: status.main(["--results", str(results), "--json"]),
        **{i: lambda i=i: status.main([i, "--results", str(results)]) for i in run_ids},
        "plan": lambda: plan(*GRID),
        "plan own": lambda: plan(*OWN),
        "tuning": lambda: analyse("tuning", "--out", f"{results}-f"),
        **(of_rows if path.parts[0] in ("runs", "curves", "memory") else {}),
        "report": lambda: analyse("report", *by_loss, "-o", f"{results}.html"),
        "budget": lambda: plan(*QUADRATIC, "batch=256", "seed=5", "budget=100"),
        "sweep": sweep,
    }


@pytest.mark.filterwarnings("ignore::analysis.tables.load.UnreadFile")
@pytest.mark.parametrize("number", range(_TRIED))
def test_commands_go_on_without_a_damaged_file(number, made, tmp_path, grid, monkeypatch):
    draw = random.Random(_SEED * 10**6 + number)
    facts = json.loads(next((made / "facts").iterdir()).read_text())
    monkeypatch.setattr(user_facts, "_ask_for_facts", lambda configs: [facts] * len(configs))
    paths = [p for p in sorted(made.rglob("*")) if p.is_file() or p.parent != made]
    path = draw.choice(paths).relative_to(made)
    name, damage = draw.choice([*damages(made / path, draw)])
    results = tmp_path / "results"
    shutil.copytree(made, results)
    damage(results / path)
    found, ended = [], {*Ledger(made).ended()}
    may_be = {"sweep": 1 if path.suffix == ".parquet" else 0}  # a run is to be trained again
    may_be["tuning"] = 2 if path.suffix == ".journal" else 0

    for what, command in commands(results, path, grid).items():
        try:
            code = command()
        except Exception as error:  # noqa: BLE001  what a user would see as a traceback
            code = repr(error)
        if code not in (0, may_be.get(what)):
            found.append(f"{path}, {name}: {what} gives {code}")

    assert not found
    assert ended - {*Ledger(results).ended()} <= {path.name.partition("-")[0]}
