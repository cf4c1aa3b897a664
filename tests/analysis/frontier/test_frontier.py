"""Time against device-hours: the knee, the next doubling, and their intervals."""

import numpy as np
import pandas as pd
import pytest

from analysis.frontier.machines import Cluster, MachineSpeeds, measured_speeds, parse_speeds
from analysis.frontier.tradeoff import (
    Steps,
    Work,
    find_tradeoff,
    step_time,
    steps_to_target,
    time_points,
)
from sweeper.spec.hardware import Hardware

FAST = Hardware(link="nvlink", node_gb_per_s=1e12, network_gb_per_s=1e12, bucket_mib=1e6)
SLOW = FAST.model_copy(update={"network_gb_per_s": 0.1 / 0.92, "node_gb_per_s": 0.1 / 0.92})
BATCHES = [2**k * 100 for k in range(9)]
FEWEST_STEPS, FEWEST_EXAMPLES = 1000.0, 3_200_000.0


def cluster(hardware: Hardware = FAST, per_node: int = 1) -> Cluster:
    return Cluster("ours", per_node, hardware)


def work(times: dict[int, float], share: float = 0.0) -> Work:
    return Work(num_bytes=1e8, evaluation_share=share, speeds=MachineSpeeds(times, "given"))


def hyperbola() -> Steps:
    return Steps({b: FEWEST_STEPS + FEWEST_EXAMPLES / b for b in BATCHES}, {})


def test_without_exchange_time_is_a_hyperbola_whose_knee_is_the_critical_batch():
    """Steps are ``fewest + examples / batch``, and devices are always full with 100 examples."""
    found = find_tradeoff(hyperbola(), work({100: 0.5}), cluster())

    for row in found.best.itertuples():
        steps = FEWEST_STEPS + FEWEST_EXAMPLES / row.global_batch
        assert row.devices == row.global_batch // 100
        assert row.time_s == pytest.approx(0.5 * steps, rel=1e-3)
        assert row.device_hours == pytest.approx(row.devices * 0.5 * steps / 3600, rel=1e-3)
    assert found.knee["global_batch"] == FEWEST_EXAMPLES / FEWEST_STEPS == 3200
    assert found.knee["devices"] == 32
    fewest = 0.5 * FEWEST_EXAMPLES / 100 / 3600
    assert found.knee["device_hours"] == pytest.approx(2 * fewest, rel=1e-3)


def test_from_the_knee_the_next_doubling_buys_what_the_two_rows_say():
    found = find_tradeoff(hyperbola(), work({100: 0.5}), cluster())

    assert found.doubled is not None
    assert found.doubled["devices"] == 64
    time_share, hours_share = found.time_share[0], found.hours_share[0]
    assert time_share == pytest.approx((1000 + 500) / (1000 + 1000), rel=1e-3)
    assert hours_share == pytest.approx(2 * time_share)


def test_nothing_on_the_frontier_is_beaten_in_both():
    found = find_tradeoff(hyperbola(), work({50: 0.3, 100: 0.5}), cluster(SLOW))
    everything = found.everything

    for row in found.frontier.itertuples():
        cheaper = everything[everything["device_hours"] < row.device_hours]
        assert (cheaper["time_s"] > row.time_s).all()


def test_a_step_has_one_exchange_however_many_micro_batches_are_accumulated():
    single = step_time(200, 2, work({100: 0.5}), cluster(SLOW))
    four = step_time(800, 2, work({100: 0.5}), cluster(SLOW))

    assert four.accumulation_steps == 4
    assert (
        four.exposed_s == single.exposed_s == pytest.approx(1.0, rel=1e-4)
    )  # 1e8 bytes at 0.1 GB/s
    assert four.total_s == pytest.approx(4 * 0.5 + 1.0, rel=1e-4)


def test_evaluations_are_shared_by_the_devices():
    alone = step_time(800, 1, work({100: 0.5}, share=0.1), cluster())
    eight = step_time(800, 8, work({100: 0.5}, share=0.1), cluster())

    assert (alone.evaluation_s, eight.evaluation_s) == pytest.approx((0.4, 0.05))


def test_a_full_node_is_slower_by_what_its_devices_share():
    shared = FAST.model_copy(update={"host_us_per_example": 1000.0})

    alone = step_time(300, 3, work({100: 0.5}), cluster(shared, per_node=4))
    full = step_time(400, 4, work({100: 0.5}), cluster(shared, per_node=4))

    assert (alone.compute_s, full.compute_s) == pytest.approx((0.5, 0.6))


def test_devices_divide_the_batch_and_fill_one_node_or_more_than_half_of_each_alike():
    found = time_points({1200: 10.0}, work({50: 0.3, 400: 2.0}), cluster(per_node=4))

    assert found["devices"].tolist() == [1, 2, 3, 4, 6, 8, 12, 15, 16, 20, 24]


def test_intervals_are_those_of_the_seeds_steps():
    rng = np.random.default_rng(0)
    rows = [(b, seed, 1000 + 4e5 / b + rng.normal(0, 20)) for b in (100, 400) for seed in range(5)]
    runs = pd.DataFrame(rows, columns=["global_batch", "seed", "steps_to_target"])
    steps = steps_to_target(runs.assign(reached_target=True))

    best = find_tradeoff(steps, work({100: 0.5}), cluster()).best

    assert (best["time_low_s"] < best["time_s"]).all()
    assert (best["time_high_s"] < 1.03 * best["time_s"]).all()
    low, high = np.quantile(steps.draws[400], [0.025, 0.975])
    assert best.loc[1, "time_high_s"] - best.loc[1, "time_low_s"] == pytest.approx(
        (high - low) * 0.5, rel=0.02
    )
    assert best["device_hours_low"].tolist() == pytest.approx(
        (best["time_low_s"] * best["devices"] / 3600).tolist()
    )


def test_each_batchs_interval_of_two_seeds_holds_its_steps_as_often_as_it_says():
    """With 95 % coverage, fewer than 105 of 120 has a probability of 0.0006."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(24):
        rows = [(b, seed, rng.normal(1000, 30)) for b in range(100, 600, 100) for seed in (0, 1)]
        runs = pd.DataFrame(rows, columns=["global_batch", "seed", "steps_to_target"])
        draws = steps_to_target(runs.assign(reached_target=True)).draws
        ends = [np.quantile(of_batch, [0.025, 0.975]) for of_batch in draws.values()]
        held += sum(low <= 1000 <= high for low, high in ends)

    assert held >= 105


def test_steps_that_all_seeds_share_are_known_to_the_distance_of_the_evaluations():
    """The spread of a mean is that of a value anywhere between two of them."""
    runs = pd.DataFrame({"global_batch": 100, "seed": [0, 1], "steps_to_target": 500.0})
    runs = runs.assign(steps_to_target_spacing=60.0, reached_target=True)

    (draws,) = steps_to_target(runs).draws.values()

    assert np.log(draws / 500).std() == pytest.approx(60 / 12**0.5 / 500, rel=0.05)


def test_a_batch_with_a_run_short_of_the_target_is_left_out_by_name():
    runs = pd.DataFrame(
        {
            "global_batch": [100, 100, 200], "seed": [0, 1, 0],
            "steps_to_target": [50.0, None, 30.0], "reached_target": [True, False, True],
        }
    )  # fmt: skip

    steps = steps_to_target(runs)

    assert steps.means == {200: 30.0}
    assert steps.notes == ("Left out, as not every run reached the target: batch 100.",)


def test_batches_that_reach_the_target_in_few_epochs_are_named():
    """There a mean falls into an epoch, of which only the end is known."""
    runs = pd.DataFrame(
        {
            "global_batch": [100, 200, 400], "seed": 0, "steps_to_target": [50.0, 30.0, 10.0],
            "epochs_to_target": [4.0, 3.9, 1.0], "reached_target": True,
        }
    )  # fmt: skip

    (note,) = steps_to_target(runs).notes

    assert note.startswith("Reached in fewer than 4 epochs at batch 200, 400: where in an epoch")


def test_speeds_are_medians_of_runs_in_one_attempt_on_the_fewest_ranks():
    runs = pd.DataFrame(
        {
            "outcome": "finished", "attempt": [1, 1, 1, 1, 2], "device_kind": "cpu",
            "world_size": [1, 1, 1, 2, 1], "micro_batch": [50, 50, 50, 50, 100],
            "accumulation_steps": [1, 2, 1, 1, 1], "steps": 10,
            "train_s": [10.0, 22.0, 12.0, 99.0, 5.0], "start_s": [1.0, None, 1.0, 1.0, 1.0],
            "wall_s": [12.0, 24.2, 14.2, 101.0, 7.0],
        }
    )  # fmt: skip

    found, evaluation_share = measured_speeds(runs)

    assert found
    assert found.times == {50: pytest.approx(1.1)}
    assert found.source == "measured on cpu"
    assert evaluation_share == pytest.approx(0.1)


def test_between_two_known_micro_batches_the_time_is_on_their_line_and_below_them_unknown():
    speeds = parse_speeds("16:160,128:320")

    assert speeds.micro_s(72) == pytest.approx(0.25)
    assert speeds.largest_fit(256) == 128
    assert speeds.largest_fit(131) is None  # a prime has no divisor between 16 and 128
    assert speeds.largest_fit(8) is None
    assert parse_speeds("200").micro_s(7) == pytest.approx(0.035)
