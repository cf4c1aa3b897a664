"""The bill of a sweep: device-hours, and when the last run ends on the machine's places."""

import json
from pathlib import Path

import pytest

from sweeper.commands import show_plan
from sweeper.commands.costs import Bill
from sweeper.launch.local.slots import Machine
from sweeper.planning.seconds import Seconds
from sweeper.spec.run_spec import run_spec

WORDS = ["accelerator=cpu", "epochs=1", "warmup=0", "schedule=constant"]
TINY = ["data.num_train_examples=1536", "batch=768"]


def seconds(total: float) -> Seconds:
    return Seconds(start=1.0, steps=total - 3, between=2.0)


def test_runs_end_as_they_find_room(grid):
    lone, pair = (run_spec(c) for c in grid(*WORDS, "batch=3840", "devices=1,2"))
    runs = [(lone, seconds(100)), (pair, seconds(50)), (lone, seconds(30))]

    found = Bill([(s, t) for s, t in runs[:2]], Machine(cores=2))

    assert found.ends_in_s == 150  # both cores are needed by the second
    assert found.device_hours == pytest.approx((100 + 2 * 50) / 3600)
    assert Bill(runs[:1], Machine(cores=2)).ends_in_s == 100


def test_a_run_whose_time_is_not_known_leaves_the_whole_unknown(grid):
    runs = [run_spec(c) for c in grid(*WORDS, "batch=3840", "seed=0,1", "price=2")]

    found = Bill([(runs[0], seconds(3600)), (runs[1], None)], Machine(cores=2))

    assert set(found.totals.values()) == {None}
    assert found.totals.keys() == {"device_hours", "ends_in_s", "cost"}
    assert found.describe(Path("results")) == (
        "1 run will take 1 device-hours, cost 2.00 (start 1s, steps 59m 57s, "
        "evaluations and checkpoints 2s). "
        "The time of 1 run is not known: no run of the same kind has finished on cpu in results. "
        "`sweeper plan --probe` with the same overrides trains the first steps of a run of each "
        "kind and keeps its speed."
    )


def test_where_a_gpu_is_asked_for_and_not_here_the_bill_says_what_would_do(grid):
    (config,) = grid(*WORDS[1:], "accelerator=gpu", "batch=3840")

    said = Bill([(run_spec(config), None)], Machine(cores=2)).describe(Path("results"))

    assert "no run of the same kind has finished on a single type of GPU in results." in said
    assert Bill([(run_spec(config), seconds(60))], Machine(cores=2)).ends_in_s is None


def test_a_probe_is_remembered_and_rows_say_what_was_predicted(sweep_here, tmp_path, capsys):
    words = [*WORDS, *TINY, "seed=0,1", f"results={tmp_path}"]
    assert show_plan.main([*words, "--json", "--no-memory"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert show_plan.main([*words, "--json", "--probe", "--no-memory"]) == 0
    said = capsys.readouterr()
    after = json.loads(said.out)

    assert before["device_hours"] is before["ends_in_s"] is before["runs"][0]["predicted_s"] is None
    assert said.err == "Training the first steps of a run of each kind (2 runs in all)...\n"
    assert not list(tmp_path.glob("runs/*"))
    first, second = after["runs"]
    assert first["predicted_s"] == second["predicted_s"] > 0
    assert sum(first["predicted_parts_s"].values()) == pytest.approx(first["predicted_s"])
    assert after["device_hours"] == pytest.approx(2 * first["predicted_s"] / 3600)

    with pytest.raises(ValueError, match=r"budget must cover the grid; .* that fits: seed=0."):
        sweep_here(tmp_path, *words[:-1], f"budget={1.5 * after['device_hours'] / 2}")
    assert not list(tmp_path.glob("runs/*"))

    assert sweep_here(tmp_path, *words[:-1], "budget=9", "price=1") == 0
    rows = show_plan.Ledger(tmp_path).rows([first["run_id"]], ["predicted_s", "wall_s", "start_s"])
    row = rows[first["run_id"]]
    assert row["predicted_s"] == first["predicted_s"]
    assert 0 < row["start_s"] < row["wall_s"]
