"""Points whose trainings are the same: found before any is started, one is trained for all."""

import json

import pytest

import analysis
from analysis.tables.load import read_metrics
from sweeper.planning import same_training
from sweeper.planning.plan import plan, tasks
from sweeper.planning.same_training import of_same
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.spec.schedule import LRSchedule
from sweeper.store.attempt import Attempt, End
from sweeper.store.compaction import compact
from sweeper.store.table_files import read_whole, write_rows

BASE = ("batch=3840", "base_batch=3840", "schedule=constant", "epochs=2", "warmup=0")


@pytest.fixture
def planned(grid, ledger):
    """The plan of a grid: the labels of the runs to train, and what they stand for."""

    def make(*words):
        found = plan(grid(*words), ledger)
        tasks(found, ledger, retry=None, rerun=None)
        return found

    return make


def end(ledger, spec, outcome=Outcome.FINISHED, **measured):
    """A run that ends after one epoch."""
    attempt = Attempt.begin(spec, ledger, ledger.last_attempt(spec.run_id) + 1)
    assert attempt is not None
    row = {"epoch": 1, "step": 16, "elapsed_s": 2.0, "metrics": {"mine": 7.0}, **measured}
    (attempt.folder / "progress.jsonl").write_text(json.dumps(row) + "\n")
    attempt.end(End(outcome=outcome, reason="as stated"), ledger)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ((*BASE, "lr_rule=none,linear,sqrt,power"), 1),
        ((*BASE, "base_batch=256", "warmup=0,0.5,1", "lr_rule=none"), 1),
        ((*BASE, "base_batch=256", "warmup=0.5,1", "warmup_start=zero", "lr_rule=none"), 2),
        ((*BASE, "base_batch=256", "warmup=0", "warmup_start=zero,base,constant"), 1),
        ((*BASE, "base_batch=256", "warmup=1", "warmup_start=zero,base,constant"), 3),
        ((*BASE, "base_batch=256", "lr_rule=none,linear"), 2),
        ((*BASE, "lr_rule=none,linear", "seed=0,1"), 2),
        ((*BASE, "lr_rule=none,linear", "schedule=constant,cosine"), 2),
        ((*BASE, "schedule=cosine", "warmup=0,1", "schedule.clock=start"), 1),
        ((*BASE, "schedule=cosine", "warmup=0,1", "schedule.clock=warmup"), 2),
        ((*BASE, "lr_rule=none", "base_lr=0.1,0.2"), 2),
        ((*BASE, "base_batch=1920,3840", "base_lr=0.1", "lr_rule=none"), 1),
        (("batch=3840", "base_batch=1920", "lr_rule=adascale,none", "warmup=0", "epochs=2"), 2),
    ],
)
def test_points_are_one_run_if_every_step_has_the_same_rate(planned, grid, words, number):
    found = planned(*words)

    assert len(found.specs) == number
    assert len(found.specs) + len(found.same) == len(grid(*words))
    for pair in found.same:
        point, trained = pair.point, pair.trained
        steps = range(point.total_steps)
        assert [point.schedule.lr(s) for s in steps] == [trained.schedule.lr(s) for s in steps]


@pytest.mark.parametrize("schedule", ["constant", "cosine", "polynomial"])
def test_no_two_runs_that_are_left_have_the_same_rates(planned, schedule):
    found = planned(
        "batch=3840,7680", "base_batch=3840", "epochs=3", "warmup=0,1", f"schedule={schedule}",
        "warmup_start=base,zero,constant", "lr_rule=none,linear,sqrt,legw",
    )  # fmt: skip

    series = {tuple(map(spec.schedule.lr, range(spec.total_steps))) for spec in found.specs}
    assert len(series) == len(found.specs) > 2


def test_the_plan_says_which_points_are_which_run(planned):
    text = "\n".join(of_same(planned(*BASE, "lr_rule=none,linear").same))

    assert text.startswith("1 point is the same training as another")
    assert "warmup=0 lr_rule=linear seed=0 as batch=3840 warmup=0 lr_rule=none seed=0" in text


def test_a_point_whose_training_an_earlier_sweep_made_is_not_trained(planned, ledger):
    (earlier,) = planned(*BASE, "lr_rule=sqrt").specs
    end(ledger, earlier, val_accuracy=0.75)

    found = planned(*BASE, "lr_rule=none,linear", "micro_batch=384")

    assert [spec.run_id for spec in found.specs] == [earlier.run_id]
    assert [spec.split.micro_batch for spec in found.specs] == [384]
    assert tasks(found, ledger, retry=None, rerun=None) == []
    assert len(tasks(found, ledger, retry=None, rerun="all")) == 1


def test_each_stored_training_is_worked_out_once(planned, ledger, monkeypatch):
    for spec in planned(*BASE, "lr_rule=none", "base_lr=0.1,0.2,0.3,0.4").specs:
        end(ledger, spec)
    made = []
    monkeypatch.setattr(
        same_training, "run_spec", lambda config: made.append(config) or run_spec(config)
    )

    found = planned(*BASE, "lr_rule=none", "base_lr=0.5,0.6,0.7,0.8,0.9")

    assert (len(found.specs), len(made)) == (5, 4)


def test_a_run_that_has_a_result_of_its_own_keeps_it(planned, grid, ledger):
    none, linear = (run_spec(config) for config in grid(*BASE, "lr_rule=none,linear"))
    end(ledger, none)
    end(ledger, linear)

    found = planned(*BASE, "lr_rule=none,linear,sqrt")

    assert {spec.run_id for spec in found.specs} == {none.run_id, linear.run_id}


def test_a_run_that_was_begun_is_gone_on_with(planned, ledger, grid):
    _, linear = (run_spec(config) for config in grid(*BASE, "lr_rule=none,linear"))
    end(ledger, linear, outcome=Outcome.PREEMPTED)

    assert [spec.run_id for spec in planned(*BASE, "lr_rule=none,linear").specs] == [linear.run_id]


def test_a_rule_that_lies_in_a_folder_is_not_imported(planned, grid, ledger, tmp_path, monkeypatch):
    (linear,) = (run_spec(config) for config in grid(*BASE, "lr_rule=linear"))
    end(ledger, linear)
    marker = tmp_path / "imported"
    (tmp_path / "foreign_rule.py").write_text(f"open({str(marker)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    (path,) = (ledger.results / "runs").glob("*.parquet")
    (row,) = read_whole(path, "runs").to_pylist()
    config = json.loads(row["config_json"])
    config["lr_rule"]["_target_"] = "foreign_rule.rule"
    write_rows([{**row, "config_json": json.dumps(config)}], path)

    found = planned(*BASE, "lr_rule=none")

    assert [spec.config.lr_rule.name for spec in found.specs] == ["none"]
    assert not marker.exists()


def test_no_series_is_computed_to_compare_points(grid, ledger, monkeypatch):
    """Of 10,000 points of 90 epochs that would take minutes."""
    monkeypatch.delattr(LRSchedule, "lr")

    found = plan(grid(*BASE, "lr_rule=none,linear", "warmup=0,1", "seed=0,1,2"), ledger)

    assert len(found.specs) == 3


def test_a_trial_takes_the_run_of_another_that_is_running_now(grid, ledger):
    none, linear = grid(*BASE, "lr_rule=none,linear")
    first = run_spec(none)

    found = plan([linear], ledger, running_now=[first])

    assert [spec.run_id for spec in found.specs] == [first.run_id]


def test_analysis_finds_the_run_for_every_point(planned, ledger, results):
    found = planned(*BASE, "lr_rule=none,linear,sqrt", "warmup=0,1")
    (trained,) = found.specs
    end(ledger, trained, val_accuracy=0.75)

    runs, curves = analysis.load_runs(results), analysis.load_curves(results)

    assert sorted(zip(runs.lr_rule, runs.warmup_epochs, strict=True)) == [
        (rule, warmup) for rule in ("linear", "none", "sqrt") for warmup in (0.0, 1.0)
    ]
    assert set(runs.val_accuracy) == {0.75}
    assert runs.run_id.is_unique
    ids = {pair.point.run_id for pair in found.same} | {trained.run_id}
    assert set(runs.run_id) == set(curves.run_id) == ids
    assert set(read_metrics(results, runs).frame.run_id) == ids
    configs = {json.loads(text)["lr_rule"]["name"] for text in runs.config_json}
    assert configs == {"none", "linear", "sqrt"}
    one = analysis.load_runs(results, ["lr_rule"])
    assert len(one) == 6
    assert dict(runs.dtypes) == dict(runs[runs.run_id == trained.run_id].dtypes)


def test_analysis_finds_it_after_a_merge_a_rerun_and_in_another_folder(
    planned, ledger, results, tmp_path
):
    found = planned(*BASE, "lr_rule=none,linear")
    (trained,) = found.specs
    end(ledger, trained, val_accuracy=0.5)
    (other,) = planned(*BASE, "lr_rule=none,linear", "seed=1").specs
    end(ledger, other)
    assert compact(results) == 2
    assert len(analysis.load_runs(results)) == 4

    ledger.supersede([trained.run_id])
    end(ledger, trained, val_accuracy=0.75)
    moved = results.rename(tmp_path / "moved")

    runs = analysis.load_runs(moved).query("seed == 0")
    assert sorted(zip(runs.lr_rule, runs.val_accuracy, strict=True)) == [
        ("linear", 0.75), ("none", 0.75)
    ]  # fmt: skip
    assert set(runs.attempt) == {2}
    assert len(analysis.load_curves(moved)) == 4


def test_a_point_with_a_row_of_its_own_is_shown_with_that(planned, ledger, grid, results):
    _, linear = (run_spec(config) for config in grid(*BASE, "lr_rule=none,linear"))
    (none,) = planned(*BASE, "lr_rule=none,linear").specs
    end(ledger, none, val_accuracy=0.5)
    end(ledger, linear, val_accuracy=0.75)

    runs = analysis.load_runs(results)

    assert sorted(zip(runs.lr_rule, runs.val_accuracy, strict=True)) == [
        ("linear", 0.75), ("none", 0.5)
    ]  # fmt: skip


def test_a_damaged_note_is_left_out(planned, ledger, results):
    (spec,) = planned(*BASE, "lr_rule=none,linear").specs
    end(ledger, spec)
    (note,) = (results / "same_runs").iterdir()
    note.write_text(note.read_text()[:40])

    assert len(analysis.load_runs(results)) == 1
    planned(*BASE, "lr_rule=none,linear")
    assert len(analysis.load_runs(results)) == 2


def test_rows_are_read_once_for_all_points_and_only_those_that_could_be_like_one(
    planned, grid, ledger, monkeypatch
):
    for seed in ("0", "1"):
        end(ledger, planned(*BASE, f"seed={seed}", "lr_rule=none").specs[0])
    texts = []
    rows = ledger.rows

    def counted(run_ids, columns):
        texts.extend(run_ids if "config_json" in columns else ())
        return rows(run_ids, columns)

    monkeypatch.setattr(ledger, "rows", counted)
    plan(grid(*BASE, "seed=1,2,3,4", "lr_rule=none,linear", "batch=256,3840"), ledger)

    assert len(texts) == 1  # that of seed 1, though there are many points
