"""Warnings of a grid: batches that split badly, BatchNorm that varies along with the batch."""

import pytest

from sweeper.spec.batch import choose_micro_batch
from sweeper.spec.run_spec import run_spec
from sweeper.spec.warnings import find_warnings, slow_split

PAPER = (3840, 7680, 15360, 23040, 30720)


@pytest.fixture
def spec(config):
    """A run without a BatchNorm span to keep, unless it is given one."""
    return lambda **changes: run_spec(config(**{"bn_span": 1, "micro_batch_limit": 256, **changes}))


def neighbours(text: str) -> list[int]:
    listed = text.split("Nearest that split well: ")[1].rstrip(".")
    return [int(word.removeprefix("batch=")) for word in listed.split(", ")]


def test_a_prime_share_is_slow_and_its_neighbours_are_not(spec):
    """521 is prime: 521 micro-batches of 1 where 256 would fit."""
    text = slow_split(spec(batch=521), None)

    assert "batch=521 is slow on 1 rank: its share of 521 only divides" in text
    assert "into micro-batches of 1, 521 in each step, where up to 256 would be possible" in text
    below, above = neighbours(text)
    assert below < 521 < above
    for batch in (below, above):
        assert choose_micro_batch(batch, world_size=1, limit=256, bn_span=1) >= 128
        assert not slow_split(spec(batch=batch), None)


WIDE = {"micro_batch_limit": 768}


@pytest.mark.parametrize(
    ("changes", "fails", "said"),
    [
        # 1,042 = 2 x 521 on two ranks, each of which has 521, which is prime.
        ({"batch": 1042, "devices": 2}, None, "on 2 ranks: its share of 521 only divides"),
        # 1,408 = 11 spans of 128: one span at a time, where six would fit into 768.
        (
            {"batch": 1408, "bn_span": 128, **WIDE},
            None,
            "of 128, 11 in each step, where up to 768 would be possible. Nearest that split well: "
            "batch=1280, batch=1536.",
        ),
        # 521 is within the limit but does not fit, 2 is what is left.
        ({"batch": 1042, **WIDE}, 521, "micro-batches of 2, 521 in each step, where up to 520"),
        ({"batch": 1042, **WIDE}, None, ""),
        (
            {"batch": 7919, "micro_batch": 1},
            None,
            "7919 in each step",
        ),  # refused unless it is given
        ({"batch": 16}, None, ""),  # one micro-batch, however small
        ({"batch": 1024}, 64, ""),  # in micro-batches of 32, because 64 do not fit
    ],
)
def test_a_share_that_splits_badly_is_slow(spec, changes, fails, said):
    text = slow_split(spec(**changes), fails)

    assert said in text
    assert bool(text) == bool(said)


@pytest.mark.parametrize("batch", PAPER)
@pytest.mark.parametrize(("devices", "num_nodes"), [(1, 1), (6, 40)])
def test_the_papers_batches_split_well(spec, batch, devices, num_nodes):
    paper = spec(batch=batch, devices=devices, num_nodes=num_nodes)

    assert find_warnings([paper], {}) == {paper.run_id: []}


def test_a_batchnorm_that_varies_over_the_runs_is_named_with_its_runs(spec):
    """Of 768, 640 divides 1,280 alone and 768 divides 1,536 alone."""
    runs = [spec(batch=b, bn_span="micro", micro_batch_limit=768) for b in (1280, 1536, 3072)]

    texts = find_warnings(runs, {})

    for run in runs:
        assert "640 at batch=1280; 768 at batch=1536, batch=3072." in texts[run.run_id][-1]


def test_a_batchnorm_that_is_the_same_in_all_runs_is_not_said_to_vary(spec):
    runs = [spec(batch=b, bn_span="micro", micro_batch=256) for b in (256, 1024)]

    texts = find_warnings(runs, {})

    assert [len(texts[run.run_id]) for run in runs] == [1, 1]
    assert "the layout changes the results" in texts[runs[0].run_id][0]


def test_the_list_of_runs_is_cut(spec):
    many = [spec(batch=256 * n, bn_span="micro") for n in range(1, 12)]
    other = spec(batch=100, bn_span="micro")

    text = find_warnings([*many, other], {})[other.run_id][-1]

    assert "256 at batch=256, batch=512" in text
    assert "and 5 more" in text


def test_epochs_that_leave_out_different_parts_are_told_of(spec, config):
    """3,000 examples: one batch of 1,600, two of 1,024, six of 500."""
    data = {**config()["data"], "num_train_examples": 3000}
    runs = [
        spec(batch=batch, data=data, seed=seed) for batch in (500, 1024, 1600) for seed in (0, 1)
    ]

    found = find_warnings(runs, {})

    expected = (
        "an epoch has whole batches only, so of 3,000 examples it leaves out 0 at batch=500, 952 "
        "at batch=1024, 1,400 at batch=1600: the runs differ in more than their batch. Nearest "
        "batches that leave out less than 1 %: 500, 1000, 1500."
    )
    assert all(expected in texts for texts in found.values())
    assert [run.dropped_examples for run in runs[::2]] == [0, 952, 1400]


def test_epochs_that_leave_out_nearly_the_same_part_are_not(spec, config):
    """10,000 examples: 16 of them with 256, none with 250."""
    data = {**config()["data"], "num_train_examples": 10_000}
    other = {**data, "num_train_examples": 10_239}  # of other data

    runs = [spec(batch=250, data=data), spec(batch=256, data=data), spec(batch=256, data=other)]

    assert not [text for texts in find_warnings(runs, {}).values() for text in texts]


def test_milestones_within_the_warmup_are_told_of(spec):
    early = spec(
        warmup=5,
        epochs=10,
        schedule={"name": "periodic_decay", "milestones": [2, 4, 8], "factor": 0.1},
    )

    assert find_warnings([early], {})[early.run_id] == [
        "schedule.milestones [2, 4] come before the end of the warmup of 5 epochs: the rate never "
        "reaches its peak. Move them, or warm up for fewer epochs."
    ]


@pytest.mark.parametrize(("milestone", "is_told"), [(80, False), (98, True)])
def test_a_growth_for_which_the_training_is_too_short_is_told_of(spec, milestone, is_told):
    """98 % of 61,440 examples are 60,212, after which no whole 7,680 come to an end."""
    schedule = {"name": "growing_batch", "milestones": [milestone], "factor": 2, "max_batch": 7680}
    run = spec(
        batch=3840, warmup=0, epochs=1, warmup_unit="percent",
        schedule={**schedule, "growth": "milestones"},
    )  # fmt: skip

    told = "schedule.milestones [0.98] never fire: the training has 1 epochs, counted from 0."
    assert any(text.startswith(told) for text in find_warnings([run], {})[run.run_id]) == is_told
    assert run.total_steps == (16 if is_told else 15)


def test_milestones_in_percent_are_told_of_in_percent(spec):
    schedule = {"name": "periodic_decay", "milestones": [5, 100], "factor": 0.1}
    run = spec(warmup=10, epochs=10, warmup_unit="percent", schedule=schedule)

    assert find_warnings([run], {})[run.run_id] == [
        "schedule.milestones [100] never fire: the training has 100 percent, counted from 0. Lower "
        "them, or train longer than 100 percent.",
        "schedule.milestones [5] come before the end of the warmup of 10 percent: the rate never "
        "reaches its peak. Move them, or warm up for fewer percent.",
    ]


SOAP = "optimizer=soap amplifies rounding"
OF_SGD = "base_lr=0.025 is the default, which is for SGD"
PARTS = "batch={} has {} parts of optimizer.gradient_span=384"
VR_SGD = ("optimizer=vr_sgd", "optimizer.gradient_span=384")
MINE = ("optimizer=sgd", "base_lr=0.025", "optimizer.name=mine")


@pytest.mark.parametrize(
    ("words", "text", "is_told"),
    [
        (["optimizer=adam"], OF_SGD, True),
        (["optimizer=lars"], OF_SGD, True),
        (["optimizer=adam", "base_lr=0.001"], OF_SGD, False),
        (["optimizer=nesterov"], OF_SGD, False),
        (["optimizer=sgd", "base_lr=0.025"], OF_SGD, False),
        (MINE, OF_SGD, True),
        ([*MINE[:2], "~optimizer.name"], OF_SGD, False),  # as in a user's file without a name
        (["optimizer=soap"], SOAP, True),
        (["optimizer=soap", "reproducible=true", "micro_batch=384"], SOAP, False),
        ([*VR_SGD, "batch=768"], PARTS.format(768, 2), True),
        ([*VR_SGD, "batch=2688"], PARTS.format(2688, 7), True),
        ([*VR_SGD, "batch=3072"], PARTS.format(3072, 8), False),
        (["optimizer=bsi_adam", VR_SGD[1], "batch=384"], PARTS.format(384, 1), False),
    ],
)
def test_what_an_optimizer_may_do_unnoticed_is_told_of(grid, words, text, is_told):
    (config,) = grid("warmup=0", "schedule=constant", *words)

    (texts,) = find_warnings([run_spec(config)], {}).values()

    assert any(told.startswith(text) for told in texts) == is_told
