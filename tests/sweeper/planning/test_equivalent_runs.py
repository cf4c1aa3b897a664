"""What cannot change a result does not make a run new, and what may is named."""

import json

import pytest

from sweeper.planning.plan import claim_tasks, plan
from sweeper.spec import identity
from sweeper.spec.outcomes import Outcome
from sweeper.spec.run_spec import run_spec
from sweeper.store.attempt import Attempt, End


@pytest.fixture
def project(grid):
    words = [
        "module=own", "module._target_=users.Module", "data=own",
        "data._target_=users.DataModule", "+data.num_train_examples=96", "batch=32",
        "warmup=0", "metric=loss", "metric_mode=min",
    ]  # fmt: skip

    def build(*more, seeds="0,1"):
        return grid(*words, *more, f"seed={seeds}")

    return build


def finish(configs, ledger):
    for config in configs:
        attempt = Attempt.begin(run_spec(config), ledger, 1)
        attempt.end(End(outcome=Outcome.FINISHED, reason=""), ledger)


def to_train(planned, ledger):
    return [task.spec for task in claim_tasks(planned, ledger, retry=None, rerun=None)]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (["+data.data_dir=/a"], ["+data.data_dir=/b"]),
        (["+data.root=/a", "+data.pin_memory=true"], ["+data.prefetch_factor=4"]),
        (["+data.batch_size=64"], ["+data.persistent_workers=true"]),
        (["+trainer.callbacks=[{_target_: lightning.pytorch.callbacks.RichProgressBar}]"], []),
        (
            ["+trainer.callbacks={show: {_target_: pytorch_lightning.callbacks.ModelCheckpoint}}"],
            ["+trainer.callbacks=[]"],
        ),
        (["+data.cache=/a", "incidental=[data.cache]"], ["incidental=[data.cache]"]),
    ],
)
def test_what_cannot_change_a_result_does_not_make_a_run_new(project, ledger, before, now):
    finish(project(*before), ledger)

    assert to_train(plan(project(*now), ledger), ledger) == []


@pytest.mark.parametrize(
    "more",
    [
        ["+data.fold=1"],
        ["+module.width=16"],
        ["+trainer.callbacks=[{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: x}]"],
        ["+trainer.callbacks=[{_target_: my.callbacks.RichProgressBar}]"],
    ],
)
def test_what_may_change_a_result_makes_a_run_new(project, ledger, more):
    finish(project(), ledger)

    assert len(to_train(plan(project(*more), ledger), ledger)) == 2


def test_finished_runs_of_earlier_folders_keep_their_ids(project, ledger, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(identity, "INCIDENTAL", {"data": frozenset({"root"})})
        finish(project("+data.data_dir=/a"), ledger)
        ids = [*ledger.ended()]
    rows = ledger.rows(ids, ["config_json"])
    assert json.loads(rows[ids[0]]["config_json"])["data"]["data_dir"] == "/a"

    planned = plan(project("+data.data_dir=/elsewhere"), ledger)

    assert sorted(spec.run_id for spec in planned.specs) == sorted(ids)
    assert to_train(planned, ledger) == []


def test_a_grid_says_in_which_settings_its_new_runs_are_not_finished_ones(project, ledger):
    """The callback has its keys in another order in a row, which is none of them."""
    same = "+trainer.callbacks=[{_target_: lightning.pytorch.callbacks.Timer, x: 1, verbose: 0}]"
    finish(project("+data.cache=/a", same), ledger)

    planned = plan(project("+data.cache=/b", same, seeds="0,1,2"), ledger)

    (note,) = planned.notes
    assert note == (
        "2 of 3 new runs differ from finished runs only in data.cache. If that cannot change a "
        "result, add 'incidental=[data.cache]': they are then the same runs."
    )
    words = ["+data.cache=/b", "incidental=[data.cache]", same]
    named = plan(project(*words, seeds="0,1,2"), ledger)
    assert [spec.config.seed for spec in to_train(named, ledger)] == [2]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"module": 1, "data": {}}'])
def test_a_finished_run_whose_config_is_not_understood_is_passed_over(
    project, ledger, monkeypatch, text
):
    finish(project("+data.cache=/a"), ledger)
    rows = {i: {"config_json": text, "micro_batch": 1, "world_size": 1} for i in ledger.ended()}
    monkeypatch.setattr(type(ledger), "rows", lambda self, ids, columns: rows)

    assert plan(project("+data.cache=/b"), ledger).notes == []


def test_a_larger_grid_is_no_news(project, ledger):
    """Keys that are swept on purpose differ without a word."""
    finish(project(), ledger)

    assert plan(project("batch=16", seeds="0,1,2"), ledger).notes == []


@pytest.mark.parametrize("given", ["[batch]", "data.cache", "[data]"])
def test_only_settings_of_own_classes_can_be_incidental(project, given):
    with pytest.raises(ValueError, match="incidental must be a list of settings of your own"):
        run_spec(project(f"incidental={given}")[0])


def test_settings_that_a_grid_sweeps_are_not_taken_for_incidental(project, ledger):
    finish(project("+module.width=8"), ledger)

    (note,) = plan(project("+module.width=16"), ledger).notes
    assert "'incidental=[module.width]'" in note
    assert plan(project("+module.width=16,32"), ledger).notes == []
