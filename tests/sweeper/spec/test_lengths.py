"""How long a run is: in epochs, steps or examples; and warmups and milestones in each of these."""

import pytest

from sweeper.planning.plan import plan
from sweeper.spec.run_spec import run_spec
from sweeper.store.ledger import Ledger


@pytest.fixture
def spec(grid):
    """A run of 61,440 examples an epoch at the default batch of 3,840: 16 steps."""

    def make(*words):
        (config,) = grid("warmup=0", *words)
        return run_spec(config)

    return make


@pytest.mark.parametrize("words", ["steps=20", "examples=76800"])
def test_twenty_steps_are_an_epoch_and_a_quarter(spec, words):
    run = spec(words)

    assert (run.total_steps, run.length, run.epochs) == (20, 1.25, 2)
    assert [run.steps_at(epoch) for epoch in range(3)] == [16, 4, 0]
    assert run.batch_plan.examples_before(2) == 76_800
    assert run.batch_plan.position(18) == 1.125


@pytest.mark.parametrize("words", ["steps=2e1", "steps=0.02k", "examples=76.8k", "examples=7.68e4"])
def test_lengths_may_be_written_in_thousands_or_as_floats(spec, words):
    assert (
        spec(words).run_id
        == spec(f"{words.partition('=')[0]}={20 if 'steps' in words else 76800}").run_id
    )


def test_billions_of_tokens_and_batches_as_floats_are_whole_numbers(grid):
    (config,) = grid("batch=1.024e3", "base_batch=512", "tokens=2.5B", "model=gpt")

    assert (config["batch"], config["tokens"], config["epochs"]) == (1024, 2_500_000_000, None)
    assert type(config["batch"]) is type(config["tokens"]) is int


def test_lengths_of_one_trunk_may_be_written_so_too(grid):
    found = grid("lengths=[2.4k,1200]", "lengths_unit=steps")

    assert [(config["steps"], config["trunk"]) for config in found] == [
        (1200, [1200, 2400]), (2400, [1200, 2400]),
    ]  # fmt: skip


def test_a_run_in_epochs_has_the_identity_that_it_had_before_there_were_other_lengths(grid):
    (config,) = grid("epochs=3", "warmup=1")
    run = run_spec(config)
    later = {"batch_unit", "steps", "examples", "warmup_unit", "evaluate_every", "checkpoint_every"}

    assert run.run_id == run_spec({k: v for k, v in config.items() if k not in later}).run_id
    assert run.run_id == run_spec({**config, "checkpoint_every": 0.1}).run_id
    assert run.run_id != run_spec({**config, "evaluate_every": 0.1}).run_id


def test_what_counts_in_tokens_is_the_run_that_counts_in_examples(spec):
    """Sequences of 128 tokens; an interval of 390.6 of them is rounded up."""
    text = ("model=gpt", "batch=8", "data.num_train_examples=1024")
    run = spec(*text, "tokens=65536", "evaluate_every=50000tokens", "checkpoint_every=1280tokens")

    assert run.run_id == spec(*text, "examples=512", "evaluate_every=391").run_id
    assert run.config.checkpoint_every == 10


def test_batches_in_tokens_are_those_in_examples(grid):
    """Sequences of 128 tokens; a batch that no word gives is in examples, as in its file."""
    text = ("model=gpt", "data.num_train_examples=1024", "lr_rule=saturating", "epochs=3")
    text += ("schedule=growing_batch", "schedule.factor=2", "schedule.milestones=[1]")
    tokens = grid(
        *text, "batch_unit=tokens", "batch=1024,8192", "lr_rule.noise_scale=192",
        "schedule.max_batch=16384",
    )  # fmt: skip
    examples = grid(*text, "batch=8,64", "lr_rule.noise_scale=1.5", "schedule.max_batch=128")

    specs = [run_spec(config) for config in tokens]
    assert [spec.run_id for spec in specs] == [run_spec(config).run_id for config in examples]
    assert [spec.split.global_batch for spec in specs] == [8, 64]
    assert specs[0].config.base_batch == 64
    assert [spec.tokens for spec in specs] == [(1024, 3 * 131_072), (8192, 3 * 131_072)]


@pytest.mark.parametrize(("unit", "base"), [("tokens", 4096), ("examples", 32), ("null", 32)])
def test_a_base_batch_that_is_typed_has_the_unit_of_the_batch(spec, unit, base):
    """Four times as many tokens: twice the rate."""
    batch = 16_384 if unit == "tokens" else 128
    run = spec(
        "model=gpt", "data.num_train_examples=1024", "lr_rule=sqrt", "base_lr=0.5",
        f"batch={batch}", f"base_batch={base}", f"batch_unit={unit}",
    )  # fmt: skip

    assert run.schedule.peak_lr == 1
    assert (run.config.batch, run.config.base_batch) == (128, 32)


@pytest.mark.parametrize(("schedule", "is_said"), [("cosine", True), ("wsd", False)])
def test_kept_checkpoints_of_which_no_branch_can_begin_are_said(grid, tmp_path, schedule, is_said):
    configs = grid("keep_checkpoint=[1,2]", f"schedule={schedule}")
    notes = plan(configs, Ledger(tmp_path)).notes

    assert any(note.startswith("No branch can begin from the kept") for note in notes) == is_said


@pytest.mark.parametrize("words", [["warmup=4", "warmup_unit=steps"], ["warmup=0.25"]])
def test_a_warmup_in_steps_is_one_in_epochs(spec, words):
    flat = ["epochs=2", "schedule=constant"]
    run, epochs = spec(*flat, *words), spec(*flat, "warmup=0.25")

    assert [run.schedule.lr(s) for s in range(32)] == [epochs.schedule.lr(s) for s in range(32)]


@pytest.mark.parametrize("batch", [1280, 3840, 7680])
def test_a_warmup_in_steps_ends_at_its_last_step_at_every_batch(spec, batch):
    """At a rate that jumps, a step more would be seen."""
    words = [f"batch={batch}", "steps=49", "warmup=7", "warmup_unit=steps"]
    run = spec(*words, "warmup_start=constant", "lr_rule=linear", "schedule=constant")

    rates = [run.schedule.lr(step) for step in range(9)]
    assert rates == [run.schedule.start_lr] * 7 + [run.schedule.peak_lr] * 2


@pytest.mark.parametrize(
    ("unit", "milestones"), [("steps", "[4,10]"), ("examples", "[15360,38400]")]
)
def test_milestones_count_in_the_unit_of_the_warmup(spec, unit, milestones):
    words = [f"warmup_unit={unit}", "steps=12", "schedule=periodic_decay"]
    run = spec(*words, f"schedule.milestones={milestones}", "schedule.factor=0.5")

    peak = run.schedule.peak_lr
    rates = [run.schedule.lr(step) / peak for step in range(12)]
    assert rates == [1.0] * 4 + [0.5] * 6 + [0.25] * 2


@pytest.mark.parametrize(
    ("length", "milestones", "steps"),
    [
        (["steps=20"], "[20,50]", [4, 10]),
        (["examples=76800"], "[20,50]", [4, 10]),
        (["epochs=10"], "[10,70]", [16, 112]),  # 0.1 of 10 epochs is 1, and 0.7 is 7
    ],
)
def test_milestones_may_be_parts_of_the_training(spec, length, milestones, steps):
    words = [*length, "warmup_unit=percent", "schedule=periodic_decay", "schedule.factor=0.5"]
    run = spec(*words, f"schedule.milestones={milestones}")

    rates = [run.schedule.lr(step) / run.schedule.peak_lr for step in range(run.total_steps)]
    assert [at for at, rate in enumerate(rates) if at and rate < rates[at - 1]] == steps


def test_a_warmup_may_be_a_part_of_the_training_or_of_its_tokens(spec):
    """A quarter of 16 steps of 8 sequences of 128 tokens."""
    text = ["model=gpt", "batch=8", "data.num_train_examples=1024", "tokens=16384"]
    text += ["schedule=constant"]
    runs = [
        spec(*text, *words)
        for words in (["warmup=25", "warmup_unit=percent"], ["warmup=4096", "warmup_unit=tokens"])
    ]

    assert [run.schedule.warmup_steps for run in runs] == [4, 4]
    assert runs[1].run_id == spec(*text, "warmup=32", "warmup_unit=examples").run_id


def test_a_decay_ends_with_the_training(spec):
    run = spec("steps=20", "schedule=cosine", "schedule.end_lr=0")

    assert run.schedule.lr(10) == pytest.approx(run.schedule.peak_lr / 2)
    assert run.schedule.lr(20) == pytest.approx(0)


@pytest.mark.parametrize("preset", [[], ["+experiment=mccord2021_warmup_small"]])
def test_a_typed_length_replaces_the_epochs_of_the_defaults_and_of_a_preset(grid, preset):
    config = grid(*preset, "steps=20")[0]

    assert (config["epochs"], config["steps"], config["examples"]) == (None, 20, None)
