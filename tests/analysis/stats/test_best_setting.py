"""Each batch at its best setting: what is chosen, what choosing costs, and who uses it."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, with_settings

from analysis.papers.claim import judge_claim, number_sessions
from analysis.papers.judge import judge_paper
from analysis.papers.mccord2021 import PAPER
from analysis.papers.paper import nearest_runs, place_runs
from analysis.report.estimates import estimate_all
from analysis.report.which_batch import compare_batches
from analysis.stats.answer import Answer
from analysis.stats.best_setting import choose_settings
from analysis.tables.metric import ACCURACY, Measured
from analysis.tables.settings import comparable_settings

BATCHES = (128, 256, 512, 1024, 2048)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def with_setting(runs, key, value, number):
    """Runs of another value of a setting, with ids of their own."""
    group, _, name = key.rpartition(".")
    return with_settings(runs, **({group: {name: value}} if group else {key: value})).assign(
        run_id=[f"{number:04d}{run_id[4:]}" for run_id in runs["run_id"]],
        lr_series_hash=runs["lr_series_hash"] + f"-{key}{value}",
    )


def rate_study(rng, seeds=3, noise=0.0015, curve=0.01, lost=0.0, factors=FACTORS):
    """Accuracy falls by `lost` a doubling, and by `curve` times the squared log of the rate.

    The best rate is that of the factor 1 at 512, and grows as the square root of the batch.
    """
    parts = []
    for number, factor in enumerate(factors):
        part = simulated_runs(
            BATCHES, [0], seeds, rng=rng, noise=noise, epochs=20,
            accuracy=lambda b, _, f=factor: 0.8 - lost * np.log2(b / 128)
            - curve * np.log(f * (512 / b) ** 0.5) ** 2,
        )  # fmt: skip
        part = part.assign(base_lr=0.1 * factor, peak_lr=0.1 * factor)
        parts.append(with_setting(part, "base_lr", 0.1 * factor, number))
    return pd.concat(parts, ignore_index=True)


def answers(runs):
    found = estimate_all(Measured(runs, simulated_curves(runs, 5)), draws=200)
    return {answer.name: answer for answer in found}


def test_a_grid_over_the_rate_does_not_split_a_study():
    found = answers(rate_study(np.random.default_rng(0), lost=0.006))

    rate = found["best_rate_exponent"]
    assert rate.low < 0.5 < rate.high < rate.low + 0.15
    assert rate.settings["rules_not_excluded"] == ["sqrt"]
    chosen = found["breaking_batch"].settings["chosen"]
    assert [chosen[str(b)]["peak rate"] for b in BATCHES] == pytest.approx(
        [0.05, 0.05, 0.1, 0.2, 0.2], rel=1.01
    )
    assert "2,048" in found["best_batch"].words  # shown to lose 2.4 points
    assert found["best_batch"].low == found["best_batch"].value == 128


def test_a_further_setting_does_not_either_but_another_length_does():
    rng = np.random.default_rng(1)
    runs = simulated_runs(BATCHES, [0], 3, accuracy=lambda *_: 0.8, noise=0.001, rng=rng)
    decays = [
        with_setting(runs.assign(val_accuracy=runs.val_accuracy - 0.01 * i), "optimizer.wd", v, i)
        for i, v in enumerate((1e-4, 1e-3, 1e-2))
    ]  # fmt: skip
    longer = with_setting(runs.assign(epochs=180), "epochs", 180, 9)

    tuned, columns = comparable_settings(pd.concat([*decays, longer], ignore_index=True))

    assert columns == ["optimizer.wd"]
    assert len(tuned) == 3 * len(runs)
    best = choose_settings(tuned, columns, ACCURACY)
    assert set(best.chosen["optimizer.wd"]) == {1e-4}
    assert {*map(tuple, best.ends.values())} == {("optimizer.wd",)}


def test_a_setting_at_which_a_run_diverged_is_not_chosen():
    runs = rate_study(np.random.default_rng(2))
    at = (runs["global_batch"] == 2048) & (runs["peak_lr"] == 0.2)
    runs.loc[runs.index[at][:1], "outcome"] = "diverged"

    best = choose_settings(runs, ["peak_lr"], ACCURACY)

    assert best.chosen.set_index("global_batch").loc[2048, "peak_lr"] != 0.2


@pytest.mark.parametrize("curve", [0.0, 0.002])
def test_choosing_among_equal_rates_makes_no_batch_look_worse(curve):
    """All batches are equal at their best rates; five rates each, three seeds."""
    rng, studies, wrong = np.random.default_rng(3), 60, 0
    for _ in range(studies):
        runs = rate_study(rng, curve=curve)
        best = choose_settings(runs, ["peak_lr"], ACCURACY)
        table = compare_batches(best.runs, ACCURACY, best.price)
        off = curve * (np.log(2) / 2) ** 2  # of a grid without the best rate
        wrong += bool((table["at_least"] > off).any())

    assert wrong <= 5  # of 60, more than 8 % of them with probability .01 at 2.5 %


def test_claims_are_at_each_points_best_rate():
    """At a hundredth of the rate nothing is learned: the arms would not differ."""
    runs = simulated_runs(
        (3840, 7680, 15360, 30720), (0, 5, 10, 20), 5, noise=0.001,
        accuracy=lambda b, w: 0.75 - 0.02 * (w == 0) - 1e-6 * b, rng=np.random.default_rng(4),
    )  # fmt: skip
    low = with_setting(runs.assign(base_lr=0.001, val_accuracy=0.1), "base_lr", 0.001, 1)
    low = low.assign(peak_lr=runs["peak_lr"] / 100)
    both = pd.concat([low, runs], ignore_index=True)

    alone, together = (judge_paper("mccord2021", r, r.iloc[:0]) for r in (runs, both))

    assert [v.verdict for v in together.verdicts] == [v.verdict for v in alone.verdicts]
    assert "each point at its best peak_lr" in together.compared.about


def test_claims_intervals_hold_the_price_of_choosing_a_rate():
    """A price as large as the variance of a point's mean over its seeds."""
    rng = np.random.default_rng(6)
    parts = [
        with_setting(
            simulated_runs(
                (3840, 7680, 15360, 30720), (0, 5, 10, 20), 5, noise=0.003,
                accuracy=lambda b, w: 0.75 - 0.02 * (w == 0) - 1e-6 * b, rng=rng,
            ).assign(base_lr=rate, peak_lr=rate),
            "base_lr", rate, number,
        )
        for number, rate in enumerate((0.1, 0.2))
    ]  # fmt: skip
    compared = nearest_runs(pd.concat(parts, ignore_index=True), PAPER)
    claim = next(c for c in PAPER.claims if c.text.startswith("At 30,720, training without"))
    known = compared.runs["price_of_val_accuracy"]  # none: of two that are alike
    priced, free = (
        judge_claim(claim, place_runs(number_sessions(some), PAPER), np.random.default_rng(0), 1)
        for some in (
            compared.runs.assign(price_of_val_accuracy=known + 0.003**2 / 5),
            compared.runs,
        )
    )

    assert priced.effect == free.effect
    assert priced.high - priced.low > free.high - free.low
    assert priced.p > free.p


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0.5, 3.0), (0.2, 0.0, 0.1)])
def test_choosing_has_a_price_where_settings_are_alike_and_none_where_one_is_best(
    gain, least, most
):
    """The luckiest of eight is taken: its mean is off by more than that of any one setting."""
    rng, spread = np.random.default_rng(5), 0.0015
    runs = pd.DataFrame(
        [
            (b, *s, seed)
            for b in BATCHES
            for s in product((1.0, 2.0), repeat=3)
            for seed in range(3)
        ],
        columns=["global_batch", "a", "b", "c", "seed"],
    ).assign(outcome="finished")
    is_best = (runs[["a", "b", "c"]] == 2).all(axis=1)
    runs["val_accuracy"] = 0.7 + gain * is_best + spread * rng.standard_normal(len(runs))

    price = choose_settings(runs, ["a", "b", "c"], ACCURACY).price

    assert least <= np.mean([*price.values()]) / (spread**2 / 3) <= most


def test_a_setting_that_is_measured_to_be_worse_is_not_chosen():
    """At 2,048 the rate .4 is three errors ahead of .2, where the response has its best."""
    runs, rng = rate_study(np.random.default_rng(0), noise=0.0), np.random.default_rng(0)
    of_seeds = [rng.permutation([-1, 0, 1]) for _ in range(len(runs) // 3)]  # no mean moves
    runs["val_accuracy"] += 0.0015 * np.concatenate(of_seeds)
    at = runs["global_batch"].eq(2048) & np.isclose(runs["peak_lr"], [0.4] * len(runs))
    ahead = runs.loc[(runs["global_batch"] == 2048) & (runs["peak_lr"] == 0.2), "val_accuracy"]
    behind = ahead.mean() - runs.loc[at, "val_accuracy"].mean()
    runs.loc[at, "val_accuracy"] += behind + 3 * 0.0015 * (2 / 3) ** 0.5

    best = choose_settings(runs, ["peak_lr"], ACCURACY)

    assert best.chosen["peak_lr"].tolist() == pytest.approx([0.05, 0.05, 0.1, 0.1, 0.4], rel=1.01)
    assert best.chosen["peak_lr"].iloc[-1] == pytest.approx(0.4)


def test_where_the_curve_and_not_the_best_mean_chose_it_is_said():
    """At 512 the second best rate was lucky by a tenth of a point, within what seeds differ."""
    runs = rate_study(np.random.default_rng(5))
    means = runs[runs["global_batch"] == 512].groupby("peak_lr")["val_accuracy"].mean()
    best, second = means.nlargest(2).index
    lucky = (runs["global_batch"] == 512) & (runs["peak_lr"] == second)
    runs.loc[lucky, "val_accuracy"] += means[best] - means[second] + 1e-5

    found = choose_settings(runs, ["peak_lr"], ACCURACY)

    taken = found.chosen.set_index("global_batch").loc[512, "peak_lr"]
    assert taken == best
    assert found.by_curve[512] == f"base_lr {best:.4g}, not base_lr {second:.4g}"
    answer = found.describe(Answer(name="best_batch", question="", words="Use.", is_answered=True))
    assert "curve through all batches, though another setting has a better mean: " in answer.words
    assert f"512 (base_lr {best:.4g}, not base_lr {second:.4g})" in answer.words
