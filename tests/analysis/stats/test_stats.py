"""Estimators against closed forms."""

import numpy as np
import pandas as pd
import pytest
from simulated_estimates import lr_runs, replicates_with, walk
from simulated_studies import simulated_curves, simulated_runs

from analysis.stats.breaking_batch import breaking_batch
from analysis.stats.contrasts import seeds_to_see
from analysis.stats.critical_batch import critical_batch, doubling_batch
from analysis.stats.laws import compare_rules, constant_rate, diffusion
from analysis.stats.optimum import best_lrs, best_warmups, exponent
from analysis.stats.pairs import compare
from analysis.stats.replicates import Estimate, Replicates, percentile_interval
from analysis.stats.to_target import to_target


def best_at_seven(_: int, warmup: float) -> float:
    return 0.9 - 0.02 * (np.log(warmup + 1) - np.log(7 + 1)) ** 2


def fit_critical(rows, estimate=critical_batch):
    columns = ["global_batch", "examples_to_target", "reached_target"]
    return estimate(pd.DataFrame(rows, columns=columns))


@pytest.mark.parametrize(
    ("batches", "fall", "lost", "value", "ends", "note"),
    [
        ([256, 512], 0, None, np.inf, None, "accuracy holds up to batch 512"),
        # It may break anywhere between the last that holds and the first that diverged.
        ([256, 512, 1024, 2048], 0, lambda r: r.global_batch > 512, 1024, (512, 1024),
         "accuracy holds up to batch 512, half or more of the runs diverged at 1,024"),
        # The survivors of a batch at which most runs diverged do not say that it holds.
        ([256, 512, 1024], 0, lambda r: (r.global_batch == 1024) & (r.seed > 0), 1024, (512, 1024),
         "accuracy holds up to batch 512, half or more of the runs diverged at 1,024"),
        # Ten points lost between two batches do not say that it begins at the first.
        ([256, 2048], 0.1, None, 256 * 8**0.05, (256, 2048), "the ends are batches that were run"),
    ],
    ids=["holds", "diverged", "survivors", "sudden fall"],
)  # fmt: skip
def test_the_batch_that_breaks_is_the_last_that_holds_or_the_first_that_does_not(
    batches, fall, lost, value, ends, note
):
    runs = simulated_runs(
        batches, [5], 3, accuracy=lambda b, _: 0.7 - fall * (b > 256), noise=0.0001
    )
    if lost:
        runs.loc[lost(runs), "outcome"] = "diverged"

    found = breaking_batch(runs, np.random.default_rng(0))

    assert found.value == pytest.approx(value, rel=0.01)
    assert ends is None or (found.low, found.high) == pytest.approx(ends)
    assert found.note.startswith(note)


def test_seeds_that_all_measured_the_same_give_no_interval_rather_than_one_without_width():
    runs = simulated_runs(
        [256, 512, 1024], [0, 2, 5], 3,
        accuracy=lambda b, w: 0.97 - 0.01 * (b > 512) - 0.01 * (np.log(w + 1) - 1) ** 2,
    )  # fmt: skip
    rng, constant = np.random.default_rng(0), "every seed measured the same: no interval"

    found = exponent(best_warmups(runs, rng)), breaking_batch(runs[runs["warmup_epochs"] == 2], rng)

    assert [(np.isnan(e.low), constant in e.note) for e in found] == [(True, True)] * 2
    same = compare(np.full(5, 0.9), np.full(5, 0.8))
    assert (same.verdict, np.isnan(same.difference.low)) == ("inconclusive", True)


def test_a_response_without_noise_gives_its_best():
    runs = simulated_runs([256, 1024], [0, 5, 10, 20], 2, accuracy=best_at_seven)

    optima = best_warmups(runs, np.random.default_rng(0))

    assert optima.best == pytest.approx([7.0, 7.0], rel=0.02)
    assert exponent(optima).value == pytest.approx(0.0, abs=1e-9)
    assert optima.table()["is_interior"].tolist() == [True, True]


def test_equal_settings_have_no_best_one():
    """The sign of the slope of equal means is chance: it is no end of the grid."""
    runs = simulated_runs([256, 1024], [0, 5, 10, 20], 3, accuracy=lambda *_: 1.0)

    optima = best_warmups(runs, np.random.default_rng(0))

    table, equal = optima.table(), "the metric is the same at all"
    assert table["best"].isna().all()
    assert not table["is_interior"].any()
    no_interval = "every seed measured the same: no interval"
    assert table["note"].tolist() == [f"no setting is best: {equal} of them; {no_interval}"] * 2
    assert exponent(optima).note == f"{equal} settings at batch 256, 1,024; {no_interval}"


@pytest.mark.parametrize(
    ("law", "note"),
    [
        (lambda b, w: 0.5 + 0.1 * np.log(w + 1), "the best is 10 or more, the largest tried"),
        (lambda b, w: 0.5 + 0.3 * (w == 0), "the best setting is 0, the end of its scale"),
    ],
)
def test_an_optimum_beyond_the_grid_is_unbounded_but_no_warmup_ends_its_scale(law, note):
    runs = simulated_runs([256, 1024], [0, 5, 10], 3, accuracy=law, noise=0.001)

    table = best_warmups(runs, np.random.default_rng(0)).table()

    assert not table["is_interior"].any()
    assert all(note in text for text in table["note"])


def test_one_seed_of_few_points_gives_an_estimate_without_an_interval():
    law = lambda b, w: 0.5 - (np.log(w + 1) - 1.5) ** 2 / 10  # noqa: E731
    runs = simulated_runs([256], [0, 5, 10], 1, accuracy=law)

    row = best_warmups(runs, np.random.default_rng(0)).table().iloc[0]

    assert row["best"] == pytest.approx(np.expm1(1.5), rel=0.02)
    assert np.isnan(row["low"])
    assert "too few points: no interval" in row["note"]


@pytest.mark.parametrize(
    ("rule", "law"),
    [
        ("none", lambda b: 1.0),
        ("sqrt", lambda b: (b / 3840) ** 0.5),
        ("linear", lambda b: b / 3840),
        ("saturating", lambda b: 4 / (1 + 20_000 / b)),
        ("surge", lambda b: 4 / (0.5 * ((15_000 / b) ** 0.5 + (b / 15_000) ** 0.5))),
    ],
)
def test_the_rule_that_made_the_rates_has_the_lowest_aicc(rule, law):
    rng = np.random.default_rng(3)

    comparison = compare_rules(best_lrs(lr_runs(rng, law, noise=1e-3), rng, 500))

    assert comparison.table["rule"][0] == rule
    assert comparison.table["weight"].sum() == pytest.approx(1.0)
    assert list(comparison.table["num_parameters"]) == [
        int(name in ("power", "saturating", "surge")) for name in comparison.table["rule"]
    ]
    assert rule in [*comparison.not_excluded, "saturating", "surge"]
    assert not {"none", "sqrt", "linear"} - {rule} & set(comparison.not_excluded) or (
        rule in ("saturating", "surge")
    )


def test_rules_with_a_bend_are_not_judged_on_four_batches():
    rng = np.random.default_rng(3)
    runs = lr_runs(rng, lambda b: 1.0)

    comparison = compare_rules(best_lrs(runs[runs["global_batch"] > 3840], rng, 200))

    assert set(comparison.table["rule"]) == {"none", "sqrt", "linear", "power"}
    assert comparison.note == "Rules with a bend need five batches or more."


def test_the_rule_of_four_is_on_evaluations_where_epochs_have_several():
    """Ten evaluations in one epoch are enough; three in one are not, and are called so."""
    columns = {"epochs_to_target": 0.5, "examples_to_target": [5.0, 6.0, 8.0]}
    frame = pd.DataFrame({"global_batch": [1, 2, 4], "reached_target": True}).assign(**columns)

    found = critical_batch(frame.assign(evaluations_to_target=10.0))

    assert found.fewest_steps == pytest.approx(1.0)
    with pytest.raises(ValueError, match="must take 4 evaluations or more to the target; got 3"):
        critical_batch(frame.assign(evaluations_to_target=3.0))


def test_the_target_is_placed_inside_the_epoch_and_the_rest_is_censored():
    runs = simulated_runs([256, 512], [5], 1, accuracy=lambda b, w: 0.8 if b == 256 else 0.4)
    curves = simulated_curves(runs, 10)

    reached = to_target(runs, curves, target=0.5)

    # 0.8 (1 - exp(-5 e / 10)) is 0.3148 after one epoch and 0.5057 after two
    share = (0.5 - 0.8 * (1 - np.exp(-0.5))) / (0.8 * (np.exp(-0.5) - np.exp(-1)))
    assert reached["epochs_to_target"].tolist()[0] == pytest.approx(1 + share)
    assert reached["steps_to_target"].tolist()[0] == pytest.approx((1 + share) * (1_281_167 // 256))
    assert reached["reached_target"].tolist() == [True, False]


def test_frames_put_together_and_converted_by_pandas_measure_the_same():
    runs = simulated_runs([256, 512], [5], 2, accuracy=lambda b, w: 0.8, noise=0.01)
    curves = simulated_curves(runs, 10)
    halves = [
        curves[curves["run_id"].isin(part)] for part in np.split(runs["run_id"].to_numpy(), 2)
    ]
    joined = pd.concat([half.reset_index(drop=True) for half in halves]).convert_dtypes()

    assert joined.index.has_duplicates
    steps = [to_target(runs, frame, 0.5)["steps_to_target"].tolist() for frame in (curves, joined)]
    np.testing.assert_allclose(*steps)
    first, second = (constant_rate(runs, frame) for frame in (curves, joined))
    np.testing.assert_allclose(first["distance"], second["distance"].to_numpy(dtype=float))


def reached_between(needs, every, seeds=3):
    """Runs whose accuracy leaps from 0 to 1 where the examples needed at their batch are seen."""
    runs, curves = [], []
    for batch, need in needs.items():
        for seed in range(seeds):
            run = {"run_id": f"{batch}-{seed}", "outcome": "finished", "global_batch": batch}
            seen = np.arange(every, 2 * need + every, every)
            runs.append({**run, "seed": seed})
            curves.append(pd.DataFrame({
                "run_id": run["run_id"], "epoch": 0, "step": seen / batch, "examples_seen": seen,
                "val_accuracy": (seen >= need).astype(float),
            }))  # fmt: skip
    return to_target(pd.DataFrame(runs), pd.concat(curves), target=0.5)


def test_seeds_that_agree_are_known_to_the_distance_of_the_evaluations():
    """A place anywhere in a width has the variance width**2 / 12."""
    reached = reached_between({100: 3050, 200: 4010, 400: 5990}, every=400)

    examples, steps = (
        Replicates.from_runs(reached, ["global_batch"], f"{unit}_to_target")
        for unit in ("examples", "steps")
    )

    assert reached["examples_to_target"].unique().tolist() == [3000, 4200, 5800]
    np.testing.assert_allclose(examples.mean_variances, 400**2 / 12)
    np.testing.assert_allclose(steps.mean_variances, [4**2 / 12, 2**2 / 12, 1 / 12])
    assert examples.keep(examples.points["global_batch"] > 100).mean_variances[0] == 400**2 / 12


def test_seeds_that_differ_by_more_than_the_evaluations_keep_their_own_spread():
    apart = [[0.0, 0.5, 1.0], [0.0, 50.0, 100.0]]  # variances of the means 1 / 12 and 2500 / 3
    points = pd.DataFrame({"global_batch": [1, 2]})
    cells = Replicates(points, tuple(map(np.array, apart)), spacings=(12.0, 12.0))

    np.testing.assert_allclose(cells.mean_variances, [12.0, 2500 / 3])
    means = cells.resampled_means(np.random.default_rng(0), 4000)
    assert np.abs(means[:, 0] - 0.5).max() <= 6
    assert means[:, 0].std() == pytest.approx(12 / 12**0.5, rel=0.05)


@pytest.mark.parametrize("estimate", [critical_batch, doubling_batch])
def test_where_examples_double_is_not_certain_because_all_seeds_agree(estimate):
    """E = 3000 + 10 B, so E_min / S_min is 300 and twice the examples of 100 is at 500."""
    needs = {batch: 3000 + 10 * batch for batch in (100, 200, 400, 800)}
    found = estimate(reached_between(needs, every=700))

    found = getattr(found, "critical_batch", found)
    truth = 300 if estimate is critical_batch else 500
    assert found.low < truth < found.high
    assert found.low < found.value < found.high
    assert "no interval" not in found.note


def test_evaluations_within_an_epoch_are_in_the_order_of_their_steps():
    runs = pd.DataFrame({"run_id": ["a"], "outcome": "finished"})
    steps = np.random.default_rng(0).permutation(np.arange(1, 101))
    curves = pd.DataFrame({"run_id": "a", "epoch": 0, "step": steps, "examples_seen": 8 * steps})

    reached = to_target(runs, curves.assign(val_accuracy=steps / 200), target=0.31)

    assert reached["steps_to_target"].tolist() == [pytest.approx(62)]
    assert reached["evaluations_to_target"].tolist() == [pytest.approx(62)]


@pytest.mark.parametrize(
    ("reached", "epochs", "sentence"),
    [
        ([True, True, False], 9.0, r"three or more batches must reach the target .*; got 2"),
        (True, [9.0, 5.0, 3.9], r"must take 4 epochs or more to the target; got 3\.9\."),
    ],
)
def test_too_few_batches_or_epochs_to_the_target_are_refused(reached, epochs, sentence):
    columns = {"epochs_to_target": epochs, "examples_to_target": 5.0, "reached_target": reached}
    frame = pd.DataFrame({"global_batch": [1, 2, 4]}).assign(**columns)

    with pytest.raises(ValueError, match=sentence):
        critical_batch(frame)


@pytest.mark.parametrize(
    ("shift", "spread", "verdict"),
    [(0.0, 0.0005, "equivalent"), (0.01, 0.0005, "different"), (0.001, 0.01, "inconclusive")],
)
def test_two_arms_are_equivalent_different_or_inconclusive(shift, spread, verdict):
    found = compare(replicates_with(0.75 + shift, spread, 5), replicates_with(0.75, spread, 5))

    assert found.verdict == verdict
    assert found.difference.value == pytest.approx(shift, abs=1e-12)
    assert (found.seeds_needed > 5) == (verdict == "inconclusive")


def test_one_seed_is_never_compared():
    with pytest.raises(ValueError, match=r"each arm must have two or more seeds .*; got 1 and 5\."):
        compare(np.array([0.7]), np.full(5, 0.7))


@pytest.mark.parametrize(
    ("effect", "spread", "normal_count"), [(0.3, 0.28, 14), (0.5, 0.28, 5), (0.3, 0.12, 3)]
)
def test_seeds_to_see_an_effect_are_one_or_two_more_than_the_normal_formula(
    effect, spread, normal_count
):
    """The normal formula 2 ((z_.975 + z_.8) sd / effect)**2 ignores that sd is estimated."""
    assert 0 <= seeds_to_see(effect, spread) - normal_count <= 2


def test_seeds_that_all_went_as_far_decide_nothing_of_the_distance():
    """They do not show how far another would go."""
    rng = np.random.default_rng(5)
    one = walk(rng, lambda t: 1 + np.log(t), seeds=1)

    found = diffusion(pd.concat([one, one.assign(seed=1)]), rng, 50)

    assert found.verdict == "inconclusive"
    assert np.isnan(found.power.low)
    assert found.power.note == "every seed measured the same: no interval"


def test_a_percentile_interval_of_few_valid_draws_is_the_whole_line():
    assert percentile_interval(np.array([1.0, 2.0, np.nan])) == (-np.inf, np.inf)


def test_bootstrapped_means_spread_as_means_do():
    """Standard error s / sqrt(n), times the Student factor t_0.975(9) / z_0.975 = 1.154."""
    cells = Replicates(points=pd.DataFrame({"x": [1]}), values=(replicates_with(0, 1, 10),))

    drawn = cells.resampled_means(np.random.default_rng(0), 20_000)

    assert drawn.std() == pytest.approx(1.154 / np.sqrt(10), rel=0.02)


@pytest.mark.parametrize(
    "examples",
    [
        lambda b, i: 1e6 - 10 * b + 9.0 * (i - 1),  # they fall with the batch
        lambda b, i: 7680 * 0.98 * 3.1 * (1 + 2e-16 * (b > 200)),  # rounding is no slope
    ],
)
def test_examples_that_do_not_grow_with_the_batch_have_no_critical_batch(examples):
    fit = fit_critical([(b, examples(b, i), True) for b in (100, 200, 400, 800) for i in range(3)])

    assert np.isnan(fit.critical_batch.value)
    assert fit.critical_batch.note.startswith("examples to target do not grow with the batch")


def test_what_a_seed_does_to_all_points_widens_no_interval():
    """Seeds that are 0.3 better or worse everywhere say nothing of the best warmup."""
    runs = simulated_runs([256, 1024], [0, 5, 10, 20], 5, accuracy=best_at_seven, noise=0.001)
    shifted = runs.assign(val_accuracy=runs["val_accuracy"] + 0.1 * runs["seed"])

    found, same = (exponent(best_warmups(r, np.random.default_rng(0))) for r in (shifted, runs))

    assert (found.low, found.high) == pytest.approx((same.low, same.high))


def test_runs_of_one_seed_at_a_point_are_no_replicates():
    """Two rules that come to the same rate are one training there; it must not count twice."""
    runs = lr_runs(np.random.default_rng(0), lambda b: (b / 3840) ** 0.5, seeds=3)
    is_base = runs["global_batch"] == 3840
    twice = pd.concat([runs, runs[is_base], runs[is_base]], ignore_index=True)

    found, once = (best_lrs(r, np.random.default_rng(0)).table() for r in (twice, runs))

    pd.testing.assert_frame_equal(found, once)


@pytest.mark.parametrize(
    ("law", "ends"), [(lambda b: b / 3840, (61440, np.inf)), (lambda b: 1.0, (0, 3840))]
)
def test_a_bend_that_no_batch_shows_is_known_from_one_side(law, ends):
    rng = np.random.default_rng(3)

    bend = compare_rules(best_lrs(lr_runs(rng, law, noise=1e-3), rng, 500)).bends["saturating"]

    assert bend.value in (0, np.inf)
    assert ends[0] <= bend.low <= bend.high <= ends[1]
    assert bend.note.startswith("no bend within 30 times the batches")


@pytest.mark.parametrize("effect", [0.0, 0.5, 1.0, 2.0])
def test_the_seeds_that_would_decide_do_so_in_80_percent_of_repetitions(effect):
    """Pilots of three seeds, a margin of 0.3 standard deviations, not the effect observed."""
    rng = np.random.default_rng(0)
    decided = []
    for _ in range(60):
        pilot = compare(rng.normal(effect, 1, 3), rng.normal(0, 1, 3), 0.3)
        n = pilot.seeds_needed or 3
        again = compare(rng.normal(effect, 1, n), rng.normal(0, 1, n), 0.3)
        decided.append(pilot.seeds_needed == 0 or again.verdict != "inconclusive")

    assert np.mean(decided) > 0.8


def test_arms_without_spread_are_compared_by_the_error_of_the_validation_set():
    first, second = np.full(3, 357 / 360), np.full(3, 354 / 360)

    found = compare(first, second, num_validation=360)

    assert found.verdict == "inconclusive"
    assert found.difference.low < 0 < found.difference.high
    assert np.isnan(compare(first, second).p_different)
    assert compare(first, second).seeds_needed == -1


def test_a_run_whose_curve_is_lost_has_not_missed_the_target():
    runs = simulated_runs([256], [5], 3, accuracy=lambda b, w: 0.8, noise=0.001)
    runs.loc[2, "outcome"] = "diverged"
    curves = simulated_curves(runs, 9)
    lost, ended_early = runs["run_id"].iloc[[1, 2]]
    known = curves[~curves["run_id"].isin([lost, ended_early])]

    found = to_target(runs, known, 0.5).set_index("run_id")["reached_target"]

    assert found.to_dict() == {runs["run_id"].iloc[0]: True, ended_early: False}


def test_an_interval_that_is_widened_holds_its_own_value():
    """A best rate of 0.00212 whose draws were from 0.00224 up."""
    found = Estimate(0.00212, 0.00224, np.inf, 3, "").widen([np.array([0.003, 0.004])])

    assert (found.low, found.high) == (0.00212, np.inf)
