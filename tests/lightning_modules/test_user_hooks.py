"""Hooks of a user's module and data are called as in any Trainer, or refused with a sentence."""

import pytest
from late_users import RedrawnDataModule, SteppedModule
from test_user_project import IN_PROCESS, curve

from lightning_modules.callbacks.batch_contract import BatchContractBroken
from lightning_modules.data.randomness import seed_everything

METRICS = ("train/mse", "val/mse/dataloader_idx_0", "val/mae_epoch/dataloader_idx_1")
VALIDATED = METRICS[1:]  # what is logged in training is of one micro-batch
LATE = [*IN_PROCESS, "module._target_=late_users.LateModule"]


def test_layers_that_are_made_late_are_those_of_the_run_too(run_words):
    """Dropout by example and BatchNorm over 16, on any layout; the distance from the first."""
    words = [*LATE, "bn_span=16"]
    whole = run_words(*words, name="whole")

    parts = run_words(*words, "micro_batch=16", name="parts")

    for name in VALIDATED:
        assert curve(parts, name) == pytest.approx(curve(whole, name), rel=1e-9)
    assert 0 < whole["curve"][0]["distance_from_start"] < 1


def test_what_is_drawn_for_whole_batches_has_its_own_draws(run_words):
    """Seeded by the place of the micro-batch, whatever was drawn before."""
    words = [*IN_PROCESS, "data._target_=late_users.RedrawnDataModule"]

    def noise(*more, name):
        RedrawnDataModule.noise.clear()
        seed_everything(7)
        record = run_words(*words, *more, name=name)
        return record, [*RedrawnDataModule.noise]

    whole, drawn = noise(name="whole")
    assert len({*drawn}) == len(drawn) == 9
    for _ in range(4):
        run_words(*words, name="stepped", one_step=True)
    record, last = noise(name="stepped")

    assert last == drawn[4:]
    assert curve(record, "val/mse/dataloader_idx_0") == curve(whole, "val/mse/dataloader_idx_0")


@pytest.mark.parametrize(
    "words",
    [
        ["module._target_=late_users.SteppedModule"],
        ["data._target_=late_users.MovedDataModule"],
    ],
)
def test_hooks_that_do_what_lightning_does_change_nothing(run_words, words):
    clipped = [*IN_PROCESS, "gradient_clip=0.1", "lr_rule=linear", "micro_batch=16"]
    plain = run_words(*clipped, name="plain")
    SteppedModule.called.clear()

    record = run_words(*clipped, *words, name="own")

    assert record["lr_series_hash"] == plain["lr_series_hash"]
    for name in METRICS:
        assert curve(record, name) == curve(plain, name)
    if "SteppedModule" in words[0]:
        assert len(SteppedModule.called) == 4


@pytest.mark.parametrize("kind", ["SkippingModule", "BareModule"])
def test_a_batch_without_its_step_ends_the_run(run_words, kind):
    sentence = (
        "every batch must be followed by its optimizer step, which Lightning takes; batch 1 of "
        "epoch 1 had 0 steps"
    )

    with pytest.raises(BatchContractBroken, match=sentence):
        run_words(*IN_PROCESS, f"module._target_=late_users.{kind}")


def test_a_ceiling_needs_a_loss(run_words):
    words = ["module._target_=users.Gan", "metric=val/score/dataloader_idx_0"]

    with pytest.raises(ValueError, match="loss_ceiling needs a module whose training_step"):
        run_words(*IN_PROCESS, *words, "micro_batch=32", "loss_ceiling=3")


def test_an_optimizer_that_passes_again_needs_the_whole_batch(run_words):
    """Lightning would pass over the last micro-batch again and again, and add up its gradients."""
    words = [*IN_PROCESS, "module._target_=late_users.SecondOrderModule", "epochs=1"]
    record = run_words(*words, name="whole")

    with pytest.raises(ValueError, match=r"as LBFGS does, .* got 4 micro-batches"):
        run_words(*words, "micro_batch=8", name="parts")

    assert record["outcome"] == "finished"


def test_a_module_finds_folders_and_sizes_where_lightning_has_them(run_words, tmp_path):
    words = [*IN_PROCESS, "module._target_=late_users.SavingModule", "micro_batch=8"]

    run_words(*words, name="saving")

    assert {path.name for path in (tmp_path / "saving" / "files").glob("epoch *")} == {
        *("epoch 0", "epoch 1", "epoch 2")
    }


def test_what_is_set_as_an_epoch_begins_holds_in_all_of_it(run_words):
    """Also in processes that load, and in a run that is resumed in the middle of the epoch."""
    words = [*IN_PROCESS, "module._target_=late_users.CurriculumModule"]
    whole = run_words(*words, name="whole")

    loaded = run_words(*words, "data._target_=late_users.LoadingDataModule", name="loaded")
    for _ in range(8):
        run_words(*words, name="stepped", one_step=True)
    record = run_words(*words, name="stepped")

    assert curve(whole, "train/started") == [1.0, 2.0, 3.0]
    for name in ("train/started", *METRICS):
        assert curve(loaded, name) == curve(record, name) == curve(whole, name)


@pytest.mark.parametrize("settings", [{"stop_after": 1}, {"one_step": True}])
def test_metrics_go_on_where_they_were(run_words, settings):
    words = [*IN_PROCESS, "module._target_=late_users.BestModule"]

    for _ in range(4 if "one_step" in settings else 1):
        run_words(*words, **settings)
    record = run_words(*words)

    assert curve(record, "val/best") == curve(record, "val/tracked") == [1.0, 1.0, 1.0]
    assert curve(record, "train/window") == pytest.approx([0.5, 1.0, 1.0])
    assert curve(record, "val/error") == [1.0, 2.0, 3.0]
    assert curve(record, "train/examples") == [96.0, 96.0, 96.0]


@pytest.mark.parametrize(
    ("kind", "words", "stops", "names"),
    [
        ("TaughtModule", [], 8, METRICS),
        ("TeachingModule", [], 8, ("train/slow_epoch", *METRICS)),
        ("KeepingModule", [], 2, ("train/own", *METRICS)),
        ("NumpysModule", ["epochs=2"], 5, METRICS),
        ("SteepPlateauModule", ["epochs=2"], 5, METRICS),
        ("PlateauModule", ["lr_rule=linear"], 0, METRICS),
        ("SummingUpModule", ["metric=train/weight"], 0, ("train/weight",)),
        ("LateModule", ["bn_span=16", "ema_decay=0.9"], 0, METRICS),
        ("ScheduleFreeModule", [], 5, METRICS),
    ],
    ids=[
        "set by a module's own callback as an epoch begins",
        "changed in the last hook of a batch",
        "added to the checkpoint by the module",
        "rates of NumPy numbers",
        "rates of a plateau of steps",
        "rates of a plateau of epochs",
        "logged at the end of an epoch",
        "layers that are made late",
        "weights of their own to evaluate",
    ],
)
def test_a_resumed_run_goes_on_as_if_it_had_not_been_stopped(run_words, kind, words, stops, names):
    """After some single steps, or after its first two epochs."""
    words = [*IN_PROCESS, f"module._target_=late_users.{kind}", *words]
    whole = run_words(*words, name="whole")

    for _ in range(stops):
        run_words(*words, name="cut", one_step=True)
    if not stops:
        run_words(*words, name="cut", stop_after=2)
    record = run_words(*words, name="cut")

    assert record["outcome"] == "finished"
    assert record["lr_series_hash"] == whole["lr_series_hash"]
    rounding = 1e-12 if kind == "TeachingModule" else 0
    for name in names:
        assert curve(record, name) == pytest.approx(curve(whole, name), rel=rounding, abs=0)
    distances = [[row["distance_from_start"] for row in r["curve"]] for r in (whole, record)]
    assert distances[0] == pytest.approx(distances[1], rel=rounding, abs=0)
    if "Plateau" in kind or kind == "NumpysModule":
        assert len({row["lr"] for row in whole["curve"]}) == 2
    if kind == "PlateauModule":  # halved after the second epoch; linear from 16 to 32 is twice
        assert [row["lr"] for row in whole["curve"]] == pytest.approx([0.1, 0.1, 0.05])
    if kind == "SummingUpModule":
        assert len({*curve(whole, "train/weight")}) == 3


@pytest.mark.parametrize(
    ("module", "data", "holds"),
    [
        ("late_users.LateModule", "users.DataModule", True),
        ("users.Module", "late_users.RedrawnDataModule", False),
    ],
    ids=["late layers", "draws for whole batches"],
)
def test_what_hooks_make_and_draw_is_found_out(module, data, holds, find_facts):
    found = find_facts({"module": {"_target_": module}, "data": {"_target_": data}})

    assert found["has_batchnorm"] is holds
    assert bool(found["found"]["same on every layout"]["holds"]) is holds
