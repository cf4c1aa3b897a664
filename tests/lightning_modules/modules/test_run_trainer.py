"""What a module makes its rates from is what a plain Trainer would show, on every layout."""

import pytest
import pytorch_lightning as pl
from counting_users import COUNTS, CountingModule
from test_user_project import IN_PROCESS, curve
from users import DataModule

from lightning_modules.process.output import quieten

COUNTING = [*IN_PROCESS, "module._target_=counting_users.CountingModule"]


def test_a_project_reads_the_counts_of_a_plain_trainer(run_words):
    quieten()
    plain = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
    plain.fit(CountingModule(), DataModule(32))
    expected = [*COUNTS]

    COUNTS.clear()
    run_words(*COUNTING, "micro_batch=8")

    assert {hook for hook, _ in expected} == {"setup", "configure_model", "configure_optimizers"}
    assert expected == COUNTS


def test_a_schedule_from_the_trainers_counts_is_the_same_on_every_layout(run_words):
    whole = run_words(*COUNTING, name="whole")

    parts = run_words(*COUNTING, "micro_batch=4", name="parts")

    assert parts["lr_series_hash"] == whole["lr_series_hash"]
    name = "val/mse/dataloader_idx_0"
    assert curve(parts, name) == pytest.approx(curve(whole, name), rel=1e-9)


@pytest.mark.parametrize(
    ("module", "holds"), [("CountingModule", True), ("RankedModule", False), ("EnvModule", False)]
)
def test_rates_that_still_follow_the_layout_are_found_out(module, holds, find_facts):
    project = {
        "module": {"_target_": f"counting_users.{module}"},
        "data": {"_target_": "users.DataModule"},
        "seed": 0,
    }

    assert find_facts(project)["found"]["same on every layout"]["holds"] is holds
