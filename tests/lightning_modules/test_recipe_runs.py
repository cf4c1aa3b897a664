"""Whole small runs of the techniques that keep state or look inside of the batch."""

import pandas as pd
import pytest

SMALL = (
    *("batch=3840", "epochs=2", "warmup=0", "schedule=constant", "base_lr=0.02"),
    "micro_batch_limit=768",
)
IN_FLOAT64 = ("precision=64-true", "data.num_train_examples=7680")


@pytest.fixture
def run(run_words):
    """Train a small run of the digits."""
    return lambda *words, **how: run_words(*SMALL, *words, num_train_examples=7680, **how)


STATEFUL = {
    "vr_lamb and weight average": ("optimizer=vr_lamb", "lr_rule=sqrt", "ema_decay=0.9"),
    "muon": ("optimizer=muon", "base_lr=0.002"),
    "delay": ("gradient_delay=3",),
    "delays of slices": ("gradient_delay=[0,3]",),
    "schedule_free": ("optimizer=schedule_free", "base_lr=0.001"),
    "bsi_adam": ("optimizer=bsi_adam", "base_lr=0.001"),
    "soap": ("optimizer=soap", "base_lr=0.001", "optimizer.precondition_frequency=2"),
    "clars and sam": ("optimizer=clars", "base_lr=0.3", "perturbation=sam"),
    "conadv": ("perturbation=conadv",),
    "lans": ("optimizer=lans", "lr_rule=sqrt"),
    "vr_lars and sam": ("optimizer=vr_lars", "base_lr=0.3", "perturbation=sam"),
    "powersgd": ("comm_hook=powersgd", "comm_hook.start_step=2", "batch=1920"),
    "adascale": ("lr_rule=adascale", "base_batch=1920"),
    "reproducible": ("reproducible=true", "micro_batch=640"),
    "lamb in bfloat16": ("optimizer=lamb", "lr_rule=sqrt", "precision=bf16-mixed"),
}
QUICK = ("lans", "powersgd", "reproducible")
STATEFUL_RUNS = [
    pytest.param(words, id=name, marks=() if name in QUICK else pytest.mark.slow)
    for name, words in STATEFUL.items()
]


@pytest.mark.parametrize("words", STATEFUL_RUNS)
def test_a_run_cut_off_after_an_epoch_or_any_step_goes_on_as_if_it_had_not_been(run, words):
    whole = run(*words, name="whole")

    run(*words, name="cut_off", stop_after=1)
    assert_same(run(*words, name="cut_off"), whole)

    for steps in range(1, whole["steps"]):
        record = run(*words, name="step_by_step", one_step=True)
        assert (record["outcome"], record["steps"]) == ("preempted", steps)
    assert_same(run(*words, name="step_by_step", one_step=True), whole)


def assert_same(record, other):
    assert record["lr_series_hash"] == other["lr_series_hash"]
    for column in ("train_loss", "val_loss", "val_accuracy", "noise_scale"):
        series = [[row[column] for row in one["curve"]] for one in (record, other)]
        assert series[0] == series[1], column


SWITCHES = {
    "exemptions": ("no_decay_on_norm_and_bias=true", "optimizer=lars", "base_lr=0.3"),
    "label smoothing": ("label_smoothing=0.2",),
    "clipping": ("gradient_clip=0.01",),
    "weight average": ("ema_decay=0.5",),
    "sam": ("perturbation=sam",),
    "conadv": ("perturbation=conadv",),
    "fp16": ("comm_hook=fp16",),
    "powersgd": ("comm_hook=powersgd", "comm_hook.start_step=2"),
}


@pytest.fixture
def plain(run):
    return {
        "sgd": run(name="sgd"),
        "lars": run("optimizer=lars", "base_lr=0.3", name="lars"),
    }


@pytest.mark.slow
def test_every_switch_changes_the_training(run, plain):
    """A switch that reaches nothing would train the default run under another name."""
    for name, words in SWITCHES.items():
        default = plain["lars" if "optimizer=lars" in words else "sgd"]

        switched = run(*words, name=name.replace(" ", "_"))

        assert switched["outcome"] == "finished"
        assert switched["curve"][-1]["val_loss"] != default["curve"][-1]["val_loss"], name


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("optimizer=vr_lars", "perturbation=sam", "base_lr=0.3"),
        ("optimizer=vr_sgd",),
        ("optimizer=vr_lamb", "lr_rule=sqrt"),
        ("optimizer=muon", "base_lr=0.002"),
        ("optimizer=soap", "base_lr=0.001", "reproducible=true", "micro_batch=384"),
        ("optimizer=bsi_adam", "base_lr=0.001"),
        ("optimizer=clars", "base_lr=0.3", "perturbation=sam"),
        ("perturbation=conadv",),
        ("optimizer=schedule_free", "base_lr=0.001"),
        ("perturbation=sam", "ema_decay=0.5", "gradient_clip=1"),
    ],
    ids=lambda words: words[0],
)
def test_what_looks_at_parts_of_the_batch_is_the_same_on_one_rank_and_on_two(
    sweep_here, tmp_path, words
):
    """The parts are gradient_span examples, wherever they are computed."""
    curves = []
    for devices in (1, 2):
        results = tmp_path / f"on-{devices}"
        assert sweep_here(results, *SMALL, *IN_FLOAT64, *words, f"devices={devices}") == 0
        curves.append(pd.read_parquet(results / "curves").sort_values("epoch"))

    for column in ("train_loss", "val_loss"):
        assert list(curves[0][column]) == pytest.approx(list(curves[1][column]), rel=1e-6)


@pytest.mark.slow
def test_one_local_step_is_plain_data_parallelism(sweep_here, tmp_path):
    """Averaging weights after every step is averaging gradients, momentum and all."""
    local = ["comm_hook=post_local_sgd", "comm_hook.workers=2", "comm_hook.start_epoch=0"]
    curves = []
    for name, words in (("plain", []), ("local", [*local, "comm_hook.local_steps=1"])):
        assert sweep_here(tmp_path / name, *SMALL, *IN_FLOAT64, *words, "devices=2") == 0
        curves.append(pd.read_parquet(tmp_path / name / "curves").sort_values("epoch"))

    for column in ("train_loss", "val_loss"):
        assert list(curves[0][column]) == pytest.approx(list(curves[1][column]), rel=1e-9)
