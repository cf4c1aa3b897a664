"""The papers as presets: every point as the paper has it, checked by arithmetic of its own.

Expected numbers are worked out by hand from the papers' settings: whole steps per epoch are
1,281,167 // batch, updates are 90 times that, and the linear rule gives 0.1 x batch / 256.
"""

from fractions import Fraction
from functools import cache

import pytest
from hydra.types import RunMode

from sweeper import CONFIG_FOLDER
from sweeper.commands.overrides import expand, merge_preset
from sweeper.spec.config import run_config
from sweeper.spec.run_spec import run_spec

# The presets whose optimizers or data are named elsewhere in conf/ are all here.
PRESETS = sorted(path.stem for path in (CONFIG_FOLDER / "experiment").glob("*.yaml"))
_WITHOUT_MILESTONES = ("limit", "critical", "marek", "muon", "wang", "jiang", "delay", "warmup")
_WITHOUT_MILESTONES += ("gpt",)
STUDIES = sorted({name for name in PRESETS if f"{name}_small" in PRESETS})


@pytest.fixture(scope="session")
def planned(loader):
    """The runs of a preset: ``planned("goyal2017", "seed=0")``."""

    @cache
    def plan(name, *words):
        words = [f"+experiment={name}", *words]
        config = loader.load_configuration("config", words, run_mode=RunMode.MULTIRUN)
        axes = merge_preset(config.hydra.sweeper.params, words)
        return [run_spec(point) for point in expand(loader, axes)]

    return plan


# batch: share of each of 240 ranks, steps per epoch, updates in 90 epochs, linear peak rate
MCCORD = {
    3840: (16, 333, 29_970, 1.5),
    7680: (32, 166, 14_940, 3.0),
    15360: (64, 83, 7_470, 6.0),
    23040: (96, 55, 4_950, 9.0),
    30720: (128, 41, 3_690, 12.0),
}


def as_mccord_has_it(spec):
    share, steps, updates, peak = MCCORD[spec.split.global_batch]
    assert spec.split.world_size == 240
    assert (spec.split.micro_batch, spec.split.accumulation_steps) == (share, 1)
    assert (spec.steps_per_epoch, spec.total_steps, spec.epochs) == (steps, updates, 90)
    if spec.config.lr_rule.name == "linear":
        assert spec.schedule.peak_lr == pytest.approx(peak)
    return True


def test_mccord_baseline_is_five_batches_of_linear_scaling_and_five_warmup_epochs(planned):
    specs = planned("mccord2021_baseline")

    assert [spec.split.global_batch for spec in specs] == list(MCCORD)
    assert all(as_mccord_has_it(spec) for spec in specs)
    assert {spec.config.warmup for spec in specs} == {5}


def test_mccord_warmup_is_two_batches_by_four_warmups(planned):
    specs = planned("mccord2021_warmup")

    points = [(spec.split.global_batch, spec.config.warmup) for spec in specs]
    assert points == [(batch, warmup) for batch in (7680, 30720) for warmup in (0, 5, 10, 20)]
    assert all(as_mccord_has_it(spec) for spec in specs)


def test_mccord_lr_scaling_compares_twelve_with_the_base_rate(planned):
    linear, none = planned("mccord2021_lr_scaling")

    assert as_mccord_has_it(linear)
    assert as_mccord_has_it(none)
    assert linear.schedule.peak_lr == pytest.approx(12.0)
    assert none.schedule.peak_lr == pytest.approx(0.0125)


def test_mccord_rate_climbs_to_its_peak_and_decays_twice_because_epoch_90_never_comes(planned):
    spec = planned("mccord2021_baseline", "batch=7680")[0]

    lr = spec.schedule.lr
    assert lr(0) == pytest.approx(0.0125)
    assert lr(415) == pytest.approx((0.0125 + 3.0) / 2)  # half of 5 x 166 steps
    assert lr(5 * 166) == pytest.approx(3.0)
    assert lr(30 * 166 - 1) == pytest.approx(3.0)
    assert lr(30 * 166) == pytest.approx(0.3)
    assert lr(spec.total_steps - 1) == pytest.approx(0.03)


def test_mccord_runs_are_the_same_runs_on_one_machine(planned):
    summit = planned("mccord2021_warmup")
    one_machine = planned("mccord2021_warmup", "devices=8", "num_nodes=1")

    assert [s.run_id for s in one_machine] == [s.run_id for s in summit]
    assert {s.split.world_size for s in one_machine} == {8}


# batch: steps per epoch, updates in 90 epochs, peak rate
GOYAL = {
    256: (5004, 450_360, 0.1),
    512: (2502, 225_180, 0.2),
    1024: (1251, 112_590, 0.4),
    2048: (625, 56_250, 0.8),
    4096: (312, 28_080, 1.6),
    8192: (156, 14_040, 3.2),
    16384: (78, 7_020, 6.4),
    32768: (39, 3_510, 12.8),
    65536: (19, 1_710, 25.6),
}


def test_goyal_is_nine_batches_of_five_seeds_with_batchnorm_over_32(planned):
    specs = planned("goyal2017")

    assert [(s.split.global_batch, s.config.seed) for s in specs] == [
        (batch, seed) for batch in GOYAL for seed in range(5)
    ]
    for spec in specs:
        steps, updates, peak = GOYAL[spec.split.global_batch]
        assert (spec.steps_per_epoch, spec.total_steps) == (steps, updates)
        assert spec.schedule.peak_lr == pytest.approx(peak)
        assert spec.bn_span == 32
        assert spec.split.micro_batch % 32 == 0


def test_goyal_fits_its_256_gpus_of_32_images_each(planned):
    spec = planned("goyal2017", "batch=8192", "seed=0", "devices=8", "num_nodes=32")[0]

    assert (spec.split.world_size, spec.split.micro_batch) == (256, 32)


def test_goyal_rate_at_8192_adds_the_same_amount_in_each_of_780_warmup_steps(planned):
    spec = planned("goyal2017", "batch=8192", "seed=0")[0]

    assert spec.schedule.warmup_steps == 5 * 156
    assert spec.schedule.lr(0) == pytest.approx(0.1)
    assert spec.schedule.lr(1) - spec.schedule.lr(0) == pytest.approx(3.1 / 780)
    assert spec.schedule.lr(80 * 156) == pytest.approx(0.0032)


def test_limit_reaches_one_step_per_epoch_with_each_optimizer(planned):
    specs = planned("limit2020")

    steps = {spec.split.global_batch: spec.steps_per_epoch for spec in specs}
    assert steps == {64_000: 20, 128_000: 10, 256_000: 5, 640_000: 2, 1_280_000: 1}
    optimizers = [spec.config.optimizer.target.rpartition(".")[2] for spec in specs]
    assert {name: optimizers.count(name) for name in optimizers} == {"SGD": 5, "lars": 5, "lamb": 5}


@pytest.mark.parametrize("name", PRESETS)
def test_the_runs_of_a_preset_are_distinct(planned, name):
    specs = planned(name)

    assert len({spec.run_id for spec in specs}) == len(specs)


@pytest.mark.parametrize("name", STUDIES)
def test_only_small_twins_say_that_they_are_twins(planned, name):
    assert {spec.config.twin_of for spec in planned(name)} == {None}
    assert all(spec.config.twin_of for spec in planned(f"{name}_small"))


@pytest.mark.parametrize("name", STUDIES)
def test_a_twin_has_the_steps_per_epoch_of_its_study(planned, name):
    full = {spec.split.global_batch: spec.steps_per_epoch for spec in planned(name)}
    small = {spec.split.global_batch: spec.steps_per_epoch for spec in planned(f"{name}_small")}

    assert len(small) == len(full)
    for mine, theirs in zip(small.values(), full.values(), strict=True):
        assert mine == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(
    "name", [name for name in STUDIES if not name.startswith(_WITHOUT_MILESTONES)]
)
def test_a_twin_keeps_warmup_and_milestones_as_fractions_of_the_training(planned, name):
    assert _fractions(planned(f"{name}_small")) == _fractions(planned(name))


def _fractions(specs):
    return {
        (
            Fraction(spec.config.warmup) / spec.epochs,
            tuple(Fraction(m, spec.epochs) for m in spec.config.schedule.milestones),
        )
        for spec in specs
    }


def test_a_point_named_on_the_command_line_is_the_presets_run(planned, grid):
    """Key order and number formats do not matter either, and the cluster is no part of a run."""
    words = (
        "schedule=mccord2021 epochs=90 data=imagenet model=resnet50 optimizer=sgd base_batch=32 "
        "optimizer.weight_decay=0.00005 base_lr=1.25e-2 bn_span=16 warmup=5.0 batch=7680"
    )

    (config,) = grid(*words.split())

    (preset,) = planned("mccord2021_warmup", "batch=7680", "warmup=5")
    assert run_spec(config).run_id == preset.run_id


@pytest.mark.parametrize(("name", "shared"), [("mccord2021", 2), ("mccord2021_small", 6)])
def test_the_papers_baseline_and_warmup_studies_share_their_runs(planned, name, shared):
    """Two batches at 5 epochs of warmup are in both, the twin's with three seeds each."""
    paper, _, small = name.partition("_")
    end = f"_{small}" if small else ""
    baseline, warmup = (planned(f"{paper}_{study}{end}") for study in ("baseline", "warmup"))

    assert len({a.run_id for a in baseline} & {b.run_id for b in warmup}) == shared


def test_a_word_on_the_command_line_replaces_an_axis_of_the_preset():
    params = {"batch": "1,2", "+recipe": "a,b"}

    assert merge_preset(params, ["+experiment=x", "batch=3"]) == [
        "+recipe=a,b",
        "+experiment=x",
        "batch=3",
    ]
    assert merge_preset(params, ["+recipe=c"]) == ["batch=1,2", "+recipe=c"]


def test_a_grid_over_presets_does_not_leave_out_their_own_grids(grid):
    """Two with grids of their own are refused, in refused_words.txt."""
    one = ["+experiment=noisy_quadratic", "lr_rule=none,linear"]
    assert len(grid(*one)) == len(grid(*one[::-1])) == 2
    assert len(grid("+experiment=noisy_quadratic", "batch=256", "base_lr=1")) == 1


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith(("goyal", "mccord"))])
def test_a_preset_leaves_nothing_behind_in_a_model_or_schedule_chosen_instead(planned, grid, name):
    words = ["model=resnet18", "schedule=cosine"]

    spec = planned(name, *words)[0]

    other = run_config(grid(*words)[0])
    assert spec.config.model == other.model
    assert spec.config.schedule == other.schedule


@pytest.mark.parametrize(
    ("words", "micro_batch"),
    [
        ([], 3840),
        (["model=resnet8"], 768),
        (["model=own", "model._target_=package.Model"], 768),
        (["micro_batch_limit=384"], 384),
    ],
)
def test_a_model_may_come_with_a_limit_of_its_own(grid, words, micro_batch):
    (config,) = grid("batch=3840", *words)

    assert run_spec(config).split.micro_batch == micro_batch
