"""Each recipe composes, plans, and trains at the rates its source states."""

from pathlib import Path

import pytest

from sweeper import CONFIG_FOLDER
from sweeper.spec.run_spec import run_spec

# Those named for a paper; limit2020's are parts of an experiment, which sets their epochs.
RECIPES = sorted(
    path.stem
    for path in (Path(CONFIG_FOLDER) / "recipe").glob("*.yaml")
    if not path.stem.startswith("limit2020")
)
IMAGENET = ("data=imagenet", "model=resnet50")


@pytest.fixture
def planned(grid):
    """The run that a recipe makes of ImageNet with ResNet-50."""

    def plan(recipe, *words):
        (config,) = grid(f"+recipe={recipe}", *IMAGENET, *words)
        return run_spec(config)

    return plan


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_plans_on_imagenet(planned, recipe):
    spec = planned(recipe)

    assert 0 < spec.schedule.warmup_steps < spec.total_steps
    assert max(map(spec.schedule.lr, range(spec.total_steps))) <= spec.schedule.peak_lr * (
        1 + 1e-12
    )


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("schedule", ["cosine", "goyal2017"])
def test_a_recipe_is_planned_with_any_schedule(planned, recipe, schedule):
    spec = planned(recipe, f"schedule={schedule}")

    assert spec.config.schedule.name == schedule.replace("goyal2017", "periodic_decay")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_says_where_it_comes_from(recipe):
    text = (Path(CONFIG_FOLDER) / "recipe" / f"{recipe}.yaml").read_text()

    assert text.startswith("# @package _global_\n# ")


# Peak rate, first rate, warmup epochs and momentum at a batch, as the sources have them.
STATED = [
    ("goyal2017", 8192, 3.2, 0.1, 5, 0.9),
    ("mccord2021_scaled", 30720, 12.0, None, 5, 0.9),
    ("mccord2021_scaled_by_workers", 30720, 3.0, None, 5, 0.9),
    ("mccord2021_unscaled", 30720, 0.0125, 0.0125, 5, 0.9),
    ("you2017_lars", 32768, 32.0, 0.0, 5, 0.9),
    ("legw2019", 8192, 16.0, 0.0, 2.5, 0.9),
    ("legw2019", 32768, 32.0, 0.0, 10, 0.9),
    ("lamb2019", 32768, 0.04, 0.0, 20, None),
    ("mlperf_rn50", 32768, 21.2, 0.0, 16, 0.94),
    ("nado2021_nesterov", 32768, 7.05, 0.0, 18.1, 0.976),
]


@pytest.mark.parametrize(("recipe", "batch", "peak", "first", "warmup", "momentum"), STATED)
def test_a_recipe_has_the_rates_that_its_source_states(
    planned, recipe, batch, peak, first, warmup, momentum
):
    spec = planned(recipe, f"batch={batch}")

    assert spec.schedule.peak_lr == pytest.approx(peak)
    assert first is None or spec.schedule.lr(0) == pytest.approx(first)
    assert spec.schedule.warmup_epochs == pytest.approx(warmup)
    assert spec.config.optimizer.settings.get("momentum") == momentum


def test_the_parabolas_end_at_their_end_rates(planned):
    for recipe, end_lr, peak in (("mlperf_rn50", 1e-4, 21.2), ("nado2021_nesterov", 6e-6, 7.05)):
        spec = planned(recipe)
        left = 1 / (spec.total_steps - spec.schedule.warmup_steps)

        last = spec.schedule.lr(spec.total_steps - 1)

        assert end_lr <= last <= end_lr + peak * (2 * left) ** 2


def test_at_7680_both_readings_of_the_scaled_arm_have_the_same_rates(planned):
    """240 GPUs of 32 are 7,680: there alone, scaling by batch and by workers agree."""
    readings = ("mccord2021_scaled", "mccord2021_scaled_by_workers")

    at_7680, at_30720 = (
        [list(map(planned(r, f"batch={batch}").schedule.lr, range(2000))) for r in readings]
        for batch in (7680, 30720)
    )

    assert at_7680[0] == pytest.approx(at_7680[1])
    assert at_30720[0] == pytest.approx([4 * lr for lr in at_30720[1]])
