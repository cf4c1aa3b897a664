"""Memory by class, of fake tensors: as that of real ones, and as counted by hand."""

import pytest
import torch
from torch import nn

from lightning_modules.memory.short_run import short_spec, train_short_run
from lightning_modules.memory.trace import TensorMemory, _LastStepDone, _TracedFit, memory_trace
from sweeper.commands.show_plan import plan_grid
from sweeper.spec.config import run_config
from sweeper.spec.run_memory import CLASSES, cost_settings
from sweeper.upstream.torchs import join_fake_ranks


@pytest.fixture
def traced(config, process_group):
    """The trace of a run that differs by these changes."""
    del process_group
    return lambda **changes: memory_trace(run_config(config(**changes)))


def test_the_classes_of_a_step_are_those_counted_by_hand():
    """One layer of 100 x 50: its input of 8 x 100 and its output are kept."""
    layer = nn.Linear(100, 50, bias=False)
    memory = TensorMemory(layer)
    with memory:
        optimizer = torch.optim.Adam(layer.parameters(), foreach=False)
        memory.begin()
        for _ in range(4):
            x = torch.ones(8, 100)
            layer(x).sum().backward()
            optimizer.step()

    size = 4 * 100 * 50
    assert memory.peak["parameters"] == memory.peak["gradients"] == size
    assert memory.peak["optimizer_state"] == pytest.approx(2 * size, abs=64)  # and a step count
    assert 4 * 8 * 100 <= memory.peak["activations"] <= 2 * 4 * (8 * 100 + 8 * 50)


def test_what_callbacks_keep_is_counted_with_the_optimizers_state(traced):
    """Momentum, the initial weights and their average are a copy of the weights each."""
    trace = traced(ema_decay=0.99)

    assert len(trace.classes) == 2
    for classes in trace.classes.values():
        assert classes["optimizer_state"] == pytest.approx(3 * classes["gradients"], rel=0.05)


@pytest.mark.parametrize(
    ("words", "copies"),
    [
        ("optimizer=muon", 2),  # the momentum; the initial weights, as always
        ("optimizer=schedule_free", 3),  # the steps, the second moment
        ("optimizer=bsi_adam", 4),  # two moments, the sums of the parts
        ("optimizer=clars", 2),
        ("perturbation=conadv", 3),
        ("perturbation=conadv perturbation.stale_steps=4", 6),
        ("gradient_delay=3", 5),
    ],
)
def test_what_a_method_keeps_is_so_many_copies_of_the_weights(grid, process_group, words, copies):
    del process_group
    (config,) = grid(*words.split())

    trace = memory_trace(run_config(config))

    for classes in trace.classes.values():
        assert classes["optimizer_state"] == pytest.approx(copies * classes["gradients"], rel=0.07)


def test_a_data_set_of_a_few_micro_batches_takes_the_memory_of_a_large_one(traced, config):
    """Its epoch is a single step, and the optimizer's state is made at the end of that."""
    of_few = {**config()["data"], "num_train_examples": 300}
    few, many = traced(batch=256, data=of_few), traced(batch=256)

    assert few.classes.keys() == {128}
    assert few.classes[128] == pytest.approx(many.classes[128], rel=1e-3)  # but for a few scalars


@pytest.mark.parametrize("is_recomputed", [False, True])
def test_a_gpt_is_predicted_within_a_tenth_and_takes_less_if_recomputed(
    grid, tmp_path, process_group, is_recomputed
):
    """Of seven blocks' activations only the inputs are kept: less than a fourth."""
    del process_group
    (tmp_path / "letters").write_text("abcdefghij" * 1000)
    (config,) = grid(
        "model=gpt", "model.width=32", "model.depth=7", "data=text", "data.name=a", "batch=16",
        "data.length=64", "data.num_val_examples=20", "data.num_train_examples=64",
        f"data.root={tmp_path / 'letters'}",
    )  # fmt: skip
    run = run_config({**config, "checkpoint_activations": is_recomputed})
    measured = _TracedFit(is_fake=False, steps=2)
    with pytest.raises(_LastStepDone):
        train_short_run(run, 8, measured)

    predicted = memory_trace(run).classes[8]

    assert sum(predicted.values()) == pytest.approx(sum(measured.memory.peak.values()), rel=0.1)
    kept_by_a_block = 8 * 64 * 32 * 4 * 16  # bytes: about 16 tensors as large as its input
    assert (predicted["activations"] > 5 * kept_by_a_block) is not is_recomputed
    assert (predicted["activations"] < 1.5 * kept_by_a_block) is is_recomputed


@pytest.mark.slow
def test_fake_tensors_take_what_real_ones_do(traced):
    """With `reproducible`, DDP wants real ones: a few steps are computed."""
    fake, real = traced(), traced(reproducible=True, micro_batch=384)

    assert fake.classes.keys() == real.classes.keys() == {128, 256}
    for micro_batch, classes in fake.classes.items():
        of_real = real.classes[micro_batch]
        assert classes["activations"] == pytest.approx(of_real["activations"], rel=0.25)
        assert classes["parameters"] == of_real["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "16-mixed", "gradient_clip": 1.0},
        {"noise_span": 128, "batch": 1280},
        {"perturbation": {"name": "sam", "rho": 0.05, "gradient_span": 128}, "batch": 1280},
    ],
)
def test_methods_and_precisions_are_traced(traced, changes):
    trace = traced(**changes)

    assert trace.classes
    for classes in trace.classes.values():
        assert all(classes[name] > 0 for name in CLASSES)


@pytest.mark.slow
def test_a_model_that_fails_says_why(traced):
    trace = traced(model={"_target_": "provoked.Raising"})

    assert trace.why_not == (
        "first steps on a CPU raised RuntimeError: the third micro-batch is cursed, and those of "
        "the run may too"
    )
    assert trace.classes == {}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"checkpoint_activations": True},
        {"ema_decay": 0.99},
        {"label_smoothing": 0.1},
        {"warmup": 0.1},
        {"loss_ceiling": 4.0},
    ],
)
def test_what_is_traced_is_of_the_run_s_kind_and_takes_two_steps(config, changes):
    """At the second micro-batch gradients are there, at the second step momentum is."""
    run = run_config(config(batch=30720, **changes))
    spec = short_spec(run, 256)

    assert cost_settings(spec.config.resolved) == cost_settings(run.resolved)
    assert (spec.split.micro_batch, spec.split.accumulation_steps) == (256, 2)
    assert spec.steps_at(0) == 2
    on_four = run_config(config(batch=30720, devices=4))
    assert short_spec(on_four, 256).split.world_size == 1


@pytest.mark.parametrize(("gradients", "part"), [("whole", 1), ("sharded", 1 / 4)])
def test_of_shards_each_rank_holds_its_part(tmp_path, monkeypatch, gradients, part):
    """Adam's moments and the weights; rank 0 keeps the initial weights whole."""
    for name in ("LOCAL_RANK", "NODE_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "0")  # so that they are restored
    words = ["model=gpt", "model.width=256", "devices=4", "strategy=fsdp", f"results={tmp_path}"]
    plan, _ = plan_grid([*words, f"fsdp_gradients={gradients}"], config_dir=None)
    join_fake_ranks(4)
    trace = memory_trace(plan.specs[0].config)
    torch.distributed.destroy_process_group()

    assert trace.why_not == ""
    width, length, depth = 256, 128, 4
    layer = 12 * width**2 + 9 * width  # less three biases of attention, and with two norms
    whole = 4 * (depth * layer + (256 + length + 2) * width)
    for classes in trace.classes.values():
        assert classes["gradients"] == pytest.approx(part * whole, rel=0.02)
        assert classes["optimizer_state"] == pytest.approx(whole + 2 * whole / 4, rel=0.02)
        assert whole / 4 < classes["parameters"] < whole / 4 + 4 * 2 * layer
