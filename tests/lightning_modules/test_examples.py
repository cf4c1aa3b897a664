"""The projects of examples/, which know nothing of sweeper, are trained as they are and counted."""

import sys
from pathlib import Path

import pytest
import pytorch_lightning as pl

from lightning_modules.modules.components import instantiate_component
from lightning_modules.process.output import quieten

EXAMPLES = str(Path(__file__).parents[2] / "examples")
PROJECTS = {
    "photos": ("PhotoModule", "PhotoDataModule", {"jitter": 0.1}, "val/acc", 1500),
    "regression": (
        "FriedmanModule", "FriedmanDataModule", {"num_train": 64, "num_val": 20}, "val/r2", 64
    ),
    "text": (
        "TextModule", "TextDataModule", {"num_sentences": 64, "num_val": 20}, "val/perplexity", 64
    ),
    "boxes": ("BoxModule", "BoxDataModule", {"num_train": 64, "num_val": 4}, "val/f1", 64),
    "lbsac": (
        "LBSACModule", "TransitionsDataModule", {"num_episodes": 1, "num_val_episodes": 1},
        "val/return", 200,
    ),
}  # fmt: skip


_SLOW = {"photos"}  # 1,500 pictures, jittered one by one


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else []) for name in PROJECTS
    ]
)
def project(request, monkeypatch):
    """Its name, with examples/ where imports look."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield request.param
    for name in [name for name in sys.modules if name.split(".")[0] == request.param]:
        del sys.modules[name]


def test_a_project_is_trained_in_the_batch_that_was_asked_for(project, run_words):
    module, data, settings, metric, num_train = PROJECTS[project]
    batch = num_train // 3

    record = run_words(
        "module=own",
        f"module._target_={project}.{module}",
        "data=own",
        f"data._target_={project}.{data}",
        *(f"+data.{key}={value}" for key, value in settings.items()),
        f"+data.num_train_examples={num_train}",
        f"batch={batch}",
        f"base_batch={batch}",
        f"micro_batch={batch}",
        "bn_span=null",
        "warmup=0",
        "epochs=1",
        f"metric={metric}",
        "metric_mode=max",
    )

    assert (record["outcome"], record["steps"]) == ("finished", 3)
    assert (record["realised_batch_min"], record["realised_batch_max"]) == (batch, batch)
    logged = record["curve"][-1]["metrics"]
    assert metric in logged
    assert any(name.startswith("train/") for name in logged)


def test_a_project_is_trained_by_its_own_trainer(project, tmp_path):
    module, data, settings, metric, num_train = PROJECTS[project]
    quieten()
    trainer = pl.Trainer(
        max_epochs=1,
        limit_train_batches=2,
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )

    trainer.fit(
        instantiate_component({"_target_": f"{project}.{module}"}),
        instantiate_component(
            {"_target_": f"{project}.{data}", "batch_size": num_train // 3, **settings}
        ),
    )

    assert metric in trainer.callback_metrics
