"""A metric depends on the weights, and neither on the batch nor on the layout."""

from functools import partial

import pytest
import pytorch_lightning as pl
import torch
import validated_users
from ranks import ask_ranks, train_each

from lightning_modules.data.randomness import seed_everything

LAYOUTS = [(48, 48), (48, 12), (24, 3), (6, 1)]  # batch, micro-batch
PROJECTS = [
    ("Still", "Padded"), ("Still", "Doubled"), ("Still", "Prepared"), ("Still", "Required"),
    ("Still", "Sampled"), ("Still", "Few"), ("Still", "Molecules"), ("Images", "Pictures"),
]  # fmt: skip


def words(module, data, batch, micro_batch, *more):
    return [
        "module=own", f"module._target_=validated_users.{module}", "data=own",
        f"data._target_=validated_users.{data}", f"batch={batch}", f"micro_batch={micro_batch}",
        "base_batch=48", "warmup=0", "epochs=1", "metric=val/loss", "metric_mode=min",
        "precision=64-true", "+data.num_train_examples=48", "bn_span=null", *more,
    ]  # fmt: skip


def last(record):
    names = [name for name in record["curve"][-1]["metrics"] if name.startswith("val/")]
    return {name: record["curve"][-1]["metrics"][name] for name in names}


@pytest.mark.parametrize(("module", "data"), PROJECTS)
def test_the_metric_of_the_same_weights_is_the_same_at_every_batch_and_layout(
    run_words, module, data
):
    records = [
        run_words(*words(module, data, *layout), name=str(n)) for n, layout in enumerate(LAYOUTS)
    ]

    first, *others = map(last, records)
    assert {"val/loss", "val/largest", "val/total", "val/drawn", "val/hits"} <= {*first}
    for other in others:
        assert other == pytest.approx(first, rel=1e-9)


@pytest.mark.parametrize(("module", "data"), [pair for pair in PROJECTS if "Required" not in pair])
def test_it_is_that_of_a_plain_trainer(run_words, module, data, tmp_path):
    ours = last(run_words(*words(module, data, 24, 3)))
    seed_everything(0)
    project = getattr(validated_users, module)()
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
    trainer = pl.Trainer(precision="64-true", accelerator="cpu", default_root_dir=tmp_path, **quiet)

    (plain,) = trainer.validate(project, datamodule=getattr(validated_users, data)(), verbose=False)

    named = ("val/loss", "val/largest", "val/total", "val/hits")
    if data == "Molecules":  # a plain Trainer takes the nodes of a batch for its examples
        named = ("val/largest", "val/total", "val/hits")
    assert {name: ours[name] for name in named} == pytest.approx(
        {name: plain[name] for name in named}, rel=1e-9
    )


def test_on_several_ranks_too(run_words, grid, tmp_path):
    """Where they divide the batches, where one has more, and where one has none."""
    chosen = [pair for pair in PROJECTS if pair[1] in ("Padded", "Few", "Required", "Pictures")]
    configs = {}
    for module, data in chosen:
        (config,) = grid(*words(module, data, 24, 4, "devices=2"))
        configs[data] = config

    ranks = ask_ranks(partial(train_each, configs), tmp_path / "meeting", world_size=2)

    for module, data in chosen:
        alone = last(run_words(*words(module, data, 48, 48), name=f"{data}-alone"))
        for records in ranks:
            assert last(records[data]) == pytest.approx(alone, rel=1e-9), data


def test_memory_that_does_not_suffice_for_them_is_said(run_words, monkeypatch):
    """Less examples in a micro-batch would not help, so this is no outcome to retry with them."""

    def run_out(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(validated_users.Still, "validation_step", run_out)

    with pytest.raises(ValueError, match=r"val_dataloader must fit .* got up to 7 examples"):
        run_words(*words("Still", "Padded", 24, 3))
