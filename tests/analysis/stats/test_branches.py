"""The critical batch from branches: by hand, and on runs whose truth is known."""

import numpy as np
import pandas as pd
import pytest

from analysis.stats.critical_branches import (
    branch_answers,
    branch_differences,
    critical_branches,
    describe_ratio,
    estimate_critical_batch,
)

CURVES = ["run_id", "epoch", "step", "realised_batch", "noise_scale", "val_loss"]
BATCHES = (16, 32, 64, 128, 256, 512)


def test_the_interval_ends_at_the_first_batch_that_is_not_shown():
    better, worse = np.array([-2.0, -1, -1.5]), np.array([2.0, 1, 1.5])
    unclear = np.array([-1.0, 1, 1])

    found = estimate_critical_batch(8, {16: better, 32: unclear, 64: worse, 128: worse})
    hidden = estimate_critical_batch(8, {16: unclear, 32: worse, 64: unclear})

    assert (found.least, found.below) == (16, 64)
    assert found.estimate == pytest.approx((16 * 32) ** 0.5)
    assert (hidden.least, hidden.below) == (8, np.inf)


def test_a_margin_is_what_counts_as_not_worse():
    by_a_little = np.array([0.01, 0.012, 0.011])

    assert estimate_critical_batch(8, {16: by_a_little}).below == 16
    assert estimate_critical_batch(8, {16: by_a_little}, margin=0.02).least == 16


def test_branches_that_all_diverged_are_worse_and_some_show_nothing():
    all_lost, one_lost = np.full(3, np.inf), np.array([-1.0, -1.1, np.inf])

    assert estimate_critical_batch(8, {16: one_lost, 32: all_lost}).below == 32
    assert estimate_critical_batch(8, {16: one_lost, 32: all_lost}).least == 8


def test_one_seed_shows_nothing():
    found = estimate_critical_batch(8, {16: np.array([5.0])})

    assert (found.least, found.below, found.num_seeds) == (8, np.inf, 1)


def test_branches_are_held_against_their_own_parents_at_the_same_epoch():
    """Parents p and q; a branch of q is longer, one diverged, and p goes on as a branch too."""
    columns = ["run_id", "branch", "seed", "global_batch", "outcome"]
    rows = [
        ("p", None, 0, 8, "finished"), ("q", None, 1, 8, "finished"),
        ("p8", "p@1", 0, 8, "finished"), ("p16", "p@1", 0, 16, "finished"),
        ("q16", "q@1", 1, 16, "finished"), ("q32", "q@1", 1, 32, "diverged"),
    ]  # fmt: skip
    losses = {"p": [5, 4.0, 3], "q": [5, 3.9, 3], "p8": [5, 3.8], "p16": [5, 4.5], "q32": [5]}
    losses["q16"] = [5, 4.4, 2]
    curves = [
        (run, epoch, epoch, 8 if epoch == 1 else 16, 100.0 * epoch, loss)
        for run, series in losses.items()
        for epoch, loss in enumerate(series, 1)
    ]

    table = branch_differences(
        pd.DataFrame(rows, columns=columns), pd.DataFrame(curves, columns=CURVES), "val_loss"
    )
    (found,) = critical_branches(table, -1).itertuples()

    assert [*table.of_parent] == [3.8, 3.8, 3.9, 3.9]
    assert table.value.fillna(-1).tolist() == [3.8, 4.5, 4.4, -1]
    assert (found.position, found.parent_batch, found.noise_scale) == (1, 8, 100)
    assert (found.least, found.below) == (8, np.inf)


def test_branches_within_an_epoch_are_compared_at_the_same_evaluations():
    """Of 60 examples, evaluated every 15; the parent at 8 sees 16, 32, 48 and 56 by then."""
    runs = pd.DataFrame(
        [("p15", "p@0.25", 0, 15, "finished", 60)],
        columns=["run_id", "branch", "seed", "global_batch", "outcome", "num_train_examples"],
    )
    seen = {"p": {16: 5.0, 32: 4.0, 48: 3.0, 56: 2.0}, "p15": {16: 5.0, 31: 4.5, 46: 3.6}}
    curves = pd.DataFrame(
        [
            (run, 0, at, 8 if run == "p" or at == 16 else 15, 2.0, loss, at)
            for run, losses in seen.items()
            for at, loss in losses.items()
        ],
        columns=[*CURVES, "examples_seen"],
    )

    table = branch_differences(runs, curves, "val_loss")

    ((position, batch, value, of_parent, after),) = table[
        ["position", "parent_batch", "value", "of_parent", "after"]
    ].to_numpy()
    assert (position, batch, value, of_parent) == (0.25, 8, 3.6, 3.0)
    assert after == pytest.approx(0.5)
    late = runs.assign(branch="p@0.4")
    with pytest.raises(ValueError, match=r"must begin at evaluations; got p@0.4, evaluated every"):
        branch_differences(late, curves, "val_loss")


def test_no_branches_are_refused():
    runs = pd.DataFrame([("p", None, "finished")], columns=["run_id", "branch", "outcome"])

    with pytest.raises(ValueError, match="must hold branches that have ended; got none"):
        branch_differences(runs, runs, "val_loss")


def test_branches_whose_curves_were_lost_are_refused():
    runs = pd.DataFrame(
        {"run_id": ["a"], "branch": ["p@1"], "seed": [0], "global_batch": [64],
         "outcome": ["finished"]}
    )  # fmt: skip
    with pytest.raises(ValueError, match="must hold the curve of a branch that finished"):
        branch_differences(runs, pd.DataFrame(columns=CURVES), "val_loss")


def test_positions_are_answers_and_one_that_is_not_decided_says_what_would_have_been_seen():
    """Losses of two seeds at batch 16 and 32, after epochs 1 and 2."""
    at_2 = {16: [2.0, 2.001], 32: [2.5, 2.501]}
    rows = [
        (position, 8, batch, seed, 4.0, value, 2.0, 1)
        for position, losses in ((1, {16: [2.3, 1.9], 32: [2.4, 1.9]}), (2, at_2))
        for batch, values in losses.items()
        for seed, value in enumerate(values)
    ]
    names = ["position", "parent_batch", "global_batch", "seed", "noise_scale", "value"]
    table = pd.DataFrame(rows, columns=[*names, "of_parent", "after"])

    vague, shown = branch_answers(critical_branches(table, -1, 0.02), 0.02, "0.02, 1 %")

    assert (vague.name, vague.has_answer, vague.settings["definition"]) == (
        "critical_batch", False, "branches",
    )  # fmt: skip
    assert vague.words.startswith("These seeds do not tell: only differences of 2.6 or more")
    assert vague.next == "Train parents of more seeds, then their branches: branch=@1"
    assert (shown.low, shown.high, shown.settings["position"], shown.next) == (16, 32, 2, "")
    assert shown.words == "16 at least and less than 32 (95 %, 2 seeds); by the means 23."
    assert "(margin 0.02, 1 %)" in shown.question


def test_one_ratio_fits_where_the_intervals_meet():
    table = pd.DataFrame({"least": [8, 32], "below": [64, np.inf], "noise_scale": [4.0, 8.0]})

    assert "fits all positions: from 4 to 16" in describe_ratio(table)
    assert describe_ratio(table.assign(below=[15, 256])).startswith("No one ratio")
    assert "not measured" in describe_ratio(table.assign(noise_scale=np.nan))


class Quadratic:
    """SGD with the square-root rule on curvatures 1 to 1/50; heavy-tailed noise of the gradient.

    A larger batch averages the noise and takes fewer steps: first the noise wins, then the steps.
    The truth is the expected loss, by the exact recursion of the weights' second moments.
    """

    curvatures = 1 / np.arange(1, 51)
    parent, rate, noise = 8, 0.4, 4.0

    def __init__(self, before: int, after: int) -> None:
        self._before, self._after = before, after

    def expected(self) -> dict[int, float]:
        """By batch, how much worse its loss is expected to be than the parent's."""
        start = self._expected(np.ones(50), self.parent, self._before)
        losses = {b: self._loss(self._expected(start, b, self._after)) for b in (8, *BATCHES)}
        return {batch: losses[batch] - losses[8] for batch in BATCHES}

    def worse(self, rng: np.random.Generator, seeds: int) -> dict[int, np.ndarray]:
        start = self._train(rng, np.ones((seeds, 50)), self.parent, self._before)
        ends = {b: self._train(rng, start, b, self._after) for b in (8, *BATCHES)}
        return {b: self._loss(ends[b] ** 2) - self._loss(ends[8] ** 2) for b in BATCHES}

    def _loss(self, squares):
        return 0.5 * (squares * self.curvatures).sum(-1)

    def _settings(self, batch: int, examples: int) -> tuple[float, float, int]:
        rate = self.rate * (batch / self.parent) ** 0.5
        return rate, self.noise / batch, examples // batch

    def _expected(self, squares, batch: int, examples: int):
        rate, variance, steps = self._settings(batch, examples)
        for _ in range(steps):
            squares = (1 - rate * self.curvatures) ** 2 * squares
            squares = squares + rate**2 * variance * self.curvatures
        return squares

    def _train(self, rng, weights, batch: int, examples: int):
        rate, variance, steps = self._settings(batch, examples)
        for _ in range(steps):
            noise = rng.standard_t(5, weights.shape) * (3 / 5) ** 0.5
            gradient = self.curvatures * weights + (variance * self.curvatures) ** 0.5 * noise
            weights = weights - rate * gradient
        return weights


def last_not_worse(expected: dict[int, float], margin: float) -> int:
    is_worse = [expected[batch] > margin for batch in BATCHES]
    return (8, *BATCHES)[is_worse.index(True)]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(512, 1024), (4096, 2048)])
@pytest.mark.parametrize("seeds", [3, 8])
@pytest.mark.parametrize("is_hardest", [False, True])
def test_the_interval_covers_the_critical_batch_of_simulated_branches(
    before, after, seeds, is_hardest
):
    """Hardest: the margin is exactly how much worse the last batch is that counts as not worse."""
    study, rng, times = Quadratic(before, after), np.random.default_rng(0), 200
    expected = study.expected()
    margin = expected[256] if is_hardest else 0.0
    truth = last_not_worse(expected, margin)

    found = [estimate_critical_batch(8, study.worse(rng, seeds), margin) for _ in range(times)]

    assert 8 < truth < max(BATCHES)
    covered = np.mean([f.least <= truth < f.below for f in found])
    assert covered >= 0.95 - 3 * (0.95 * 0.05 / times) ** 0.5
    if seeds == 8 and not is_hardest:
        assert np.mean([np.isfinite(f.below) for f in found]) > 0.2


def test_branches_without_their_parents_are_refused():
    """As after --where batch=16, which drops a parent at batch 8."""
    runs = pd.DataFrame(
        {"run_id": ["a"], "branch": ["p@1"], "seed": [0], "global_batch": [16],
         "outcome": ["finished"]}
    )  # fmt: skip
    curves = pd.DataFrame([("a", epoch, epoch, 8, 1.0, 2.0) for epoch in (1, 2)], columns=CURVES)

    with pytest.raises(
        ValueError, match=r"must hold the parents of these branches.*; got none of p"
    ):
        branch_differences(runs, curves, "val_loss")
