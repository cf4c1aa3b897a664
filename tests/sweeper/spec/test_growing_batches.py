"""Growing the batch instead of decaying the rate, against the arithmetic of Smith et al."""

from math import cos, pi, sin, sqrt

import pytest

from sweeper.spec.run_spec import run_spec, with_growths
from sweeper.spec.schedules import BatchByRate

# Goyal's schedule on 64,000 examples from a batch of 64: 1,000 steps an epoch.
SMITH = (
    "schedule=growing_batch",
    "schedule.milestones=[30,60,80]",
    "batch=64",
    "bn_span=64",
    "epochs=90",
    "warmup=5",
    "data.num_train_examples=64000",
)


def rates(spec, epochs):
    """The rates at the beginning of these 0-based epochs, as parts of the peak."""
    steps = map(spec.batch_plan.steps_before, epochs)
    return [spec.schedule.lr(step) / spec.schedule.peak_lr for step in steps]


def list_batches(spec):
    """Pairs of the epoch, or of the epoch and its step, from which a batch is used, and it."""
    plan = spec.batch_plan
    return [
        ((epoch, step) if step else epoch, plan.split_at(epoch, step).global_batch)
        for epoch, step in plan.starts
    ]


@pytest.fixture
def planned(grid):
    def plan(*words, milestones=True):
        given = [w for w in SMITH if milestones or not w.startswith("schedule")]
        (config,) = grid(*given, *words)
        return run_spec(config)

    return plan


def test_a_batch_that_grows_tenfold_at_30_60_80_takes_33_epochs_worth_of_steps(planned):
    """Smith: 30 + 30/10 + 20/100 + 10/1000 = 33.21 epochs of the first batch instead of 90."""
    spec = planned("schedule.max_batch=64000")

    assert spec.total_steps == 33_210
    assert list_batches(spec) == [(0, 64), (30, 640), (60, 6400), (80, 64_000)]
    assert spec.batch_plan.examples_before(90) == 90 * 64_000


def test_the_rate_stays_while_the_batch_grows_and_decays_once_it_may_not(planned):
    spec = planned("schedule.max_batch=6400")

    assert rates(spec, (30, 60, 79, 80)) == pytest.approx([1, 1, 1, 0.1])


def test_a_batch_that_may_not_grow_is_trained_as_with_periodic_decay(planned):
    grown = planned("schedule.max_batch=64")
    decayed = planned("schedule=periodic_decay", "schedule.factor=0.1")

    steps = [0, 1000, 4999, 5000, 29_999, 30_000, 60_000, 79_999, 80_000, 89_999]
    assert grown.total_steps == decayed.total_steps == 90_000
    expected = [decayed.schedule.lr(step) for step in steps]
    assert [grown.schedule.lr(step) for step in steps] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("optimizer", "expected"), [("adamw", (1, 0.5**0.5, 0.5)), ("lars", (1, 0.5**0.5, 0.5)),
                             ("sgd", (1, 1, 1)), ("vr_sgd", (1, 1, 1))],
)  # fmt: skip
def test_seesaw_in_three_equal_phases_saves_five_twelfths_of_the_steps(
    planned, optimizer, expected
):
    """Its paper: 41.7 % of the steps; for Adam at 1, 1 / sqrt(2) and 1/2 of the rate."""
    words = ("schedule.at=[0.33333,0.66667]", f"optimizer={optimizer}", "base_lr=0.1")
    spans = ("optimizer.gradient_span=32", "bn_span=32") if optimizer == "vr_sgd" else ()
    spec = planned("schedule=seesaw", *words, *spans, milestones=False)

    assert list_batches(spec) == [(0, 64), (30, 128), (60, 256)]
    assert spec.total_steps / 90_000 == pytest.approx(1 - 0.417, abs=1e-3)
    assert rates(spec, (29, 30, 60)) == pytest.approx(expected)


def test_batch_warmup_saves_as_many_steps_as_its_paper_says(planned):
    """Merrill et al.: doubled at 168 and 503 of 658 billion tokens, 43.1 % fewer steps."""
    grow = ("schedule.factor=2", "schedule.max_batch=256", "+schedule.rate_exponent=0.5")
    spec = planned(*grow, "schedule.milestones=[168,503]", "epochs=658")

    assert 1 - spec.total_steps / 658_000 == pytest.approx(0.431, abs=1e-3)
    assert rates(spec, (167, 168, 503)) == pytest.approx([1, 2**0.5, 2])


@pytest.mark.parametrize(
    ("critical", "batches"),
    [
        ("[127,128,500]", [(0, 64), (60, 128), (80, 256)]),
        ("[300,64,64]", [(0, 64), (30, 128), (31, 256)]),  # once an epoch, and never back
        ("[64,100,127]", [(0, 64)]),
        ("[300,300,64]", [(0, 64), (30, 128), (31, 256)]),
    ],
)
def test_batch_warmup_doubles_the_batch_once_the_critical_batch_is_twice_it(
    planned, critical, batches
):
    given = ("schedule.positions=[30,60,80]", f"schedule.critical_batch={critical}")
    spec = planned("schedule=batch_warmup", *given, milestones=False)

    assert list_batches(spec) == batches
    assert rates(spec, [89]) == pytest.approx([2 ** ((len(batches) - 1) / 2)])


def test_a_batch_may_grow_in_the_last_epoch(planned):
    spec = planned("schedule.milestones=[89]", "schedule.max_batch=64000")

    assert list_batches(spec) == [(0, 64), (89, 640)]
    assert spec.total_steps == 89 * 1000 + 100


def test_an_optimizer_of_the_users_own_says_what_seesaw_does_to_its_rate(planned):
    own = ("optimizer.name=mine", "optimizer._target_=mine.Optimizer", "base_lr=0.1")
    words = ("schedule=seesaw", *own, "~optimizer.nesterov", "epochs=32")

    with pytest.raises(ValueError, match=r"^schedule\.rate_exponent must be given with an opt"):
        planned(*words, milestones=False)
    said = planned(*words, "schedule.rate_exponent=-0.25", milestones=False)
    assert rates(said, [16]) == pytest.approx([2**-0.25])


def test_accumulation_grows_and_the_micro_batch_and_the_ranks_stay(planned):
    spec = planned("schedule.max_batch=640", "devices=2", "micro_batch=32", "bn_span=32")

    splits = [spec.batch_plan.split_at(epoch) for epoch in (29, 30)]
    assert [split.accumulation_steps for split in splits] == [1, 10]
    assert {(split.micro_batch, split.world_size) for split in splits} == {(32, 2)}


def test_a_step_stands_where_its_phase_puts_it(planned):
    """30 epochs of 1,000 steps, 30 of 100, 20 of 10."""
    spec = planned("schedule.max_batch=64000")

    steps = (29_999, 30_000, 30_050, 33_000, 33_005, 33_200)
    positions = [spec.batch_plan.position(step) for step in steps]
    assert positions == pytest.approx([29.999, 30, 30.5, 60, 60.5, 80])


def test_a_measured_growth_before_a_milestone_stands_for_it(planned):
    """Grown after 20 and 25 epochs: the milestones 30 and 60 are paid for, 80 is not."""
    spec = planned(
        "schedule.growth=measured", "schedule.max_batch=6400", "noise_span=32", "bn_span=32"
    )
    assert spec.batch_plan.grown == ()

    grown = with_growths(spec, (20, 25))

    assert rates(grown, (20, 30, 60, 80)) == pytest.approx([1, 1, 1, 0.1])
    assert grown.batch_plan.split_at(25).global_batch == 6400
    assert grown.run_id == spec.run_id


#: A quarter, a half and all of a batch of 256 in one epoch of 64,000 examples: 3 % of it are 1,920
#: examples and 30 steps of 64; 10 % 6,400 and 35 steps of 128 more; 225 steps of 256 are left.
RAMP = ("schedule.factor=2", "epochs=1", "warmup=0")
IN_EXAMPLES = ("epochs=null", "examples=64000")
IN_PERCENT = ("schedule.max_batch=256", "warmup_unit=percent")


@pytest.mark.parametrize(
    ("is_given", "words"),
    [
        (True, ["schedule.milestones=[3,10]", "warmup_unit=percent"]),
        (True, ["schedule.milestones=[3,10]", "warmup_unit=percent", *IN_EXAMPLES]),
        (True, ["schedule.milestones=[30,65]", "warmup_unit=steps", "epochs=null", "steps=290"]),
        (True, ["schedule.milestones=[1920,6400]", "warmup_unit=examples"]),
        (True, ["schedule.milestones=[1857,6145]", "warmup_unit=examples"]),  # the steps after
        (True, ["schedule.milestones=[0.03,0.1]"]),
        (False, ["schedule=seesaw", "schedule.at=[0.03,0.1]", *IN_EXAMPLES]),
        (False, ["schedule=batch_warmup", "schedule.positions=[3,10]", "warmup_unit=percent",
                 "schedule.critical_batch=[128,256]"]),
    ],
)  # fmt: skip
def test_a_batch_may_grow_within_an_epoch_by_any_clock(planned, is_given, words):
    most = ["schedule.max_batch=256"] if is_given else []
    spec = planned(*RAMP, *most, *words, milestones=is_given)

    assert list_batches(spec) == [(0, 64), ((0, 30), 128), ((0, 65), 256)]
    assert (spec.total_steps, spec.length) == (290, 1)
    assert spec.batch_plan.examples_before(1) == 64_000
    positions = [spec.batch_plan.position(step) for step in (29, 30, 65, 66)]
    assert positions == [29 * 64 / 64_000, 0.03, 0.1, 6656 / 64_000]


def test_tokens_are_a_clock_of_a_growing_batch_too(grid):
    """Of sequences of 128 tokens; the run in tokens is the run in examples."""
    text = ("model=gpt", "batch=8", "data.num_train_examples=1024", "schedule=growing_batch")
    text += ("schedule.factor=2", "schedule.max_batch=32")
    (tokens,) = grid(
        *text,
        "tokens=65536",
        "warmup=1024",
        "warmup_unit=tokens",
        "schedule.milestones=[8192,16384]",
    )
    (examples,) = grid(
        *text, "examples=512", "warmup=8", "warmup_unit=examples", "schedule.milestones=[64,128]"
    )
    spec = run_spec(tokens)

    assert spec.run_id == run_spec(examples).run_id
    assert list_batches(spec) == [(0, 8), ((0, 8), 16), ((0, 12), 32)]
    assert spec.total_steps == 8 + 4 + (512 - 128) // 32


def test_a_batch_grows_where_a_whole_number_of_the_larger_has_been_trained(planned):
    """3 % of 10,000 are 300, after which 3 x 128 is next; 10 % are 1,000, before 4 x 256.

    Until then the rate stays: the milestone is not one at which the batch may not grow.
    """
    words = ("data.num_train_examples=10000", "schedule.milestones=[3,10]", *IN_PERCENT)
    spec = planned(*RAMP, *words)

    assert list_batches(spec) == [(0, 64), ((0, 6), 128), ((0, 11), 256)]
    assert spec.total_steps == 6 + 5 + (10_000 - 1024) // 256
    assert {spec.schedule.lr(step) for step in range(46)} == {spec.schedule.peak_lr}
    assert spec.batch_plan.examples_before(1) == 10_000 // 256 * 256


def test_epochs_after_a_growth_within_one_are_of_the_larger_batch(planned):
    """2,000 of 64,000 examples at 64, whose 31.25 steps are 32; then whole epochs of 500 steps."""
    words = ("schedule.milestones=[1.03125]", "schedule.max_batch=128", "schedule.factor=2")
    spec = planned(*words, "epochs=4", "warmup=0")

    first = 1000 + 32
    assert list_batches(spec) == [(0, 64), ((1, 32), 128)]
    assert spec.total_steps == first + (64_000 - 2048) // 128 + 2 * 500
    assert spec.batch_plan.place(first + 484) == (2, 0)
    assert spec.batch_plan.position(first + 484 + 250) == 2.5
    assert [spec.steps_at(epoch) for epoch in range(4)] == [1000, 516, 500, 500]


def test_the_rate_of_a_ramp_changes_with_the_batch_and_falls_where_that_may_not_grow(planned):
    """At 50 % of the epoch, 100 steps after step 65."""
    words = ("schedule.milestones=[3,10,50]", *IN_PERCENT, "+schedule.rate_exponent=0.5")
    spec = planned(*RAMP, *words)

    peak = spec.schedule.peak_lr
    found = [spec.schedule.lr(step) / peak for step in (29, 30, 64, 65, 164, 165)]
    assert found == pytest.approx([1, 2**0.5, 2**0.5, 2, 2, 1])


def test_a_length_that_ends_within_a_grown_step_is_refused_with_the_nearest(planned):
    words = (*RAMP, *IN_PERCENT, "schedule.milestones=[3,10]", "epochs=null")
    nearest = r"of 256\. Nearest that work: examples=32000, examples=32256\.$"

    with pytest.raises(ValueError, match=nearest):
        planned(*words, "examples=32064")
    for examples in (32_000, 32_256):
        spec = planned(*words, f"examples={examples}")
        assert spec.batch_plan.examples_before(1) == examples


def test_gradients_may_be_delayed_where_the_growth_is_planned(planned):
    words = ["gradient_delay=2", "gradient_clip=null", "schedule.max_batch=6400"]

    assert planned(*words).config.gradient_delay == 2
    with pytest.raises(ValueError, match=r"got gradient_delay=2, schedule\.growth=measured"):
        planned(*words, "schedule.growth=measured", "noise_span=32", "bn_span=32")


#: By schedule of the rate and part of the steps, the batch over the mean: by hand, with the rate's
#: integrals in closed form, 1 - x; (1 - x)^2 / 2; (1 - x - sin(pi x) / pi) / 2; and, with a fifth
#: of cooldown of which the part p is over, 0.2 (1/3 - p + 2/3 p^1.5).
BY_RATE = {
    "constant": {0.0005: 0.5, 0.7495: 1, 0.9375: 2},
    "linear_decay": {0.0005: 1, 0.5005: 1, 0.9005: 1},
    "cosine": {
        x: (1 + cos(pi * x)) / 2 / (2 * sqrt(0.5 * (1 - x - sin(pi * x) / pi) / 2))
        for x in (0.0005, 0.5005, 0.9005)
    },
    "wsd": {
        0.0005: 1 / (2 * 13 / 15),
        0.8005: (1 - 0.05) / (2 * sqrt(13 / 15 * 0.2 * (1 / 3 - 0.0025 + 2 / 3 * 0.0025**1.5))),
        0.8505: 0.25 / sqrt(13 / 15 / 30),
    },
}


@pytest.mark.parametrize("rate", BY_RATE)
def test_the_batch_of_each_step_is_what_its_rate_asks_for(rate):
    given = {"rate": rate, "cooldown": 0.2, "mean_batch": 1000, "max_batch": 10**6, "factor": 2}
    found = BatchByRate(name="batch_by_rate", **given).unrounded()

    batches = {part: found[int(part * 1000)] / 1000 for part in BY_RATE[rate]}
    assert batches == pytest.approx(BY_RATE[rate], rel=5e-3)
    assert sum(found) / 1000 == pytest.approx(1000, rel=0.01)  # the examples that there are


OF_RATE = ("schedule=batch_by_rate", "schedule.mean_batch=128", "schedule.max_batch=512")


@pytest.mark.parametrize("length", [("epochs=1",), ("epochs=null", "examples=64000")])
def test_with_a_constant_rate_the_batch_doubles_each_time_an_eighth_of_the_rest_is_left(
    planned, length
):
    """64 / sqrt(1 - x), by powers of two: from 1/2, 7/8 and 31/32 of the steps on.

    After 17,067, 42,667 and 55,467 examples, each time at the next multiple of the larger batch.
    """
    spec = planned(*OF_RATE, "schedule.rate=constant", "warmup=0", *length, milestones=False)

    assert list_batches(spec) == [(0, 64), ((0, 268), 128), ((0, 468), 256), ((0, 519), 512)]
    assert (spec.total_steps, spec.batch_plan.examples_before(1)) == (535, 64_000)
    assert {spec.schedule.lr(step) for step in (0, 500, 534)} == {spec.schedule.peak_lr}


def test_the_batch_may_shrink_and_the_rate_counts_steps(planned):
    """In the warmup of 100 steps the batch is the first; a cosine falls to a half half way."""
    words = ("schedule.rate=cosine", "epochs=1", "warmup=0.1", "warmup_start=zero")

    spec = planned(*OF_RATE, *words, milestones=False)

    assert [size for _, size in list_batches(spec)] == [64, 128, 64]
    assert list_batches(spec)[1][0] == (0, 100)
    half_way = 100 + (spec.total_steps - 100) / 2
    rates = [spec.schedule.lr(int(at)) / spec.schedule.peak_lr for at in (50, 100, half_way)]
    assert rates == pytest.approx([0.5, 1, 0.5], abs=0.003)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["schedule.mean_batch=32"], r"^schedule\.mean_batch must be from batch, the smallest, to"),
        (["schedule.max_batch=64001"], r"^schedule\.max_batch must be from batch=64 to the epoch"),
        (["lr_rule=adascale", "base_batch=32"], r"growing batch needs a learning rate that does n"),
    ],
)
def test_a_batch_that_the_rate_cannot_give_is_refused(planned, words, message):
    with pytest.raises(ValueError, match=message):
        planned(*OF_RATE, *words, "epochs=1", "warmup=0", milestones=False)
