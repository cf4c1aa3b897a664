"""What is logged once an epoch is of all ranks, whichever of them have logged it."""

from functools import partial

import pytest
from ranks import ask_ranks, train_each
from test_user_project import IN_PROCESS, curve

from lightning_modules.callbacks import logged_metrics
from lightning_modules.callbacks.logged_metrics import LoggedValues

WORDS = [
    *IN_PROCESS, "module._target_=late_users.TellingModule",
    "data._target_=late_users.OddDataModule", "metric=val/mse",
]  # fmt: skip


def test_values_of_two_ranks_are_merged_by_name(fit, line, plan, batches, noting, monkeypatch):
    others = {
        "training_step.largest": ["max", 9.0, 1.0, ["largest"]],
        "training_step.absent": ["sum", 4.0, 1.0, ["absent", "absent_epoch"]],
        "training_step.mean": ["mean", 30.0, 3.0, ["mean"]],
    }
    other = {key: logged_metrics._Logged(*value) for key, value in others.items()}
    monkeypatch.setattr(logged_metrics, "num_ranks", lambda: 2)
    monkeypatch.setattr(logged_metrics, "gather_states", lambda own: [own, other])

    class Telling(line):
        def training_step(self, batch, batch_idx):
            self.log("mean", 6.0, on_step=True, on_epoch=True, batch_size=1)
            self.log("largest", batch_idx * 1.0, on_step=False, on_epoch=True, reduce_fx="max")
            return super().training_step(batch, batch_idx)

    seen = noting("on_train_epoch_end", lambda trainer, _: dict(trainer.callback_metrics))
    fit(Telling(), [LoggedValues(plan(), "mean"), seen], batches(4), accumulate=2)

    assert seen.noted[-1] == {
        **{"mean": (4 * 6 + 30) / (4 + 3), "mean_step": 6, "mean_epoch": (4 * 6 + 30) / (4 + 3)},
        **{"largest": 9, "absent": 4, "absent_epoch": 4},
    }


@pytest.mark.slow
def test_two_ranks_record_what_one_does(run_words, grid, tmp_path):
    """Also where they log other names, and where no share of the examples is a whole number."""
    whole = run_words(*WORDS, "micro_batch=16", name="whole")
    (config,) = grid(*WORDS, "micro_batch=16", "devices=2")

    records = ask_ranks(partial(train_each, {"two": config}), tmp_path / "meeting", world_size=2)

    for record in (one["two"] for one in records):
        for name in ("train/mse", "train/largest", "train/first", "val/mse", "val/sum", "val/seen"):
            assert curve(record, name) == pytest.approx(curve(whole, name), rel=1e-9), name
        assert curve(record, "val/last") == [5.0] * 3
        assert curve(record, "val/rank") == [0.5] * 3
