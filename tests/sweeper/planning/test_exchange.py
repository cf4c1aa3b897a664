"""The exchange of gradients: NCCL's numbers worked out by hand, and what backward hides."""

from itertools import pairwise

import numpy as np
import pytest

from sweeper.planning import exchange as planning_exchange
from sweeper.planning.exchange import Places, all_reduce_s, exchange
from sweeper.spec.hardware import Hardware

SUMMIT = Hardware(link="nvlink", node_gb_per_s=32, network_gb_per_s=24, bucket_mib=64)


def test_one_rank_exchanges_nothing():
    assert all_reduce_s(1e9, Places(1, 6), SUMMIT) == 0


def test_ring_of_240_ranks_on_summit_is_what_nccls_table_gives_by_hand():
    # LL128: 14 us, 400 hops of 1.9 us in nodes and 78 of 4 us between them, 92 % of 24 GB/s
    latency_us = 14 + 400 * 1.9 + 78 * 4.0
    bytes_us = 102e6 / (1000 * 0.92 * 24 * 240 / 478)

    found = all_reduce_s(102e6, Places(240, 6), SUMMIT, "ring")

    assert found == pytest.approx((latency_us + bytes_us) / 1e6)


def test_tree_of_240_ranks_on_summit_is_what_nccls_table_gives_by_hand():
    # LL128: 14 us, twice 5 hops of 1.25 us and log2(40) of 8.5 us, half of 92 % of 24 GB/s, of
    # which 120 of 128 bytes are gradients and 90 % is reached at this size
    latency_us = 14 + 2 * (5 * 1.25 + np.log2(40) * 8.5)
    bytes_us = 102e6 / (1000 * 0.9 * 0.92 * 24 * 120 / 128 / 2)

    found = all_reduce_s(102e6, Places(240, 6), SUMMIT, "tree")

    assert found == pytest.approx((latency_us + bytes_us) / 1e6, rel=0.01)


def test_of_ring_and_tree_the_faster_is_taken_and_small_messages_of_many_nodes_go_by_tree():
    for num_bytes in (1e3, 1e6, 1e9):
        both = [all_reduce_s(num_bytes, Places(9996, 6), SUMMIT, a) for a in ("ring", "tree")]

        assert all_reduce_s(num_bytes, Places(9996, 6), SUMMIT) == min(both)
    assert all_reduce_s(1e3, Places(9996, 6), SUMMIT, "tree") < 3e-4
    assert all_reduce_s(1e3, Places(9996, 6), SUMMIT, "ring") > 1e-2


def test_hierarchical_is_the_ring_of_one_node_and_shorter_than_one_ring_through_many():
    in_node, far = Places(6, 6), Places(9996, 6)

    assert all_reduce_s(1e8, in_node, SUMMIT, "hierarchical") == pytest.approx(
        all_reduce_s(1e8, in_node, SUMMIT, "ring")
    )
    assert all_reduce_s(1e6, far, SUMMIT, "hierarchical") < all_reduce_s(1e6, far, SUMMIT, "ring")


def test_hybrid_switches_where_the_lines_of_ring_and_hierarchical_cross():
    """By hand, 40 nodes of 6: 14 us and 390 hops in nodes saved; 5 / 3 bytes more go by NVLink."""
    places, per_us = Places(240, 6), 920.0
    saved_us = 390 * 1.9 - 14
    more_us = 5 / 3 / (per_us * 32) + (2 * 39 / 40 - 2 * 239 / 240) / (per_us * 24)
    crossing = saved_us / more_us  # 13 MB

    def times(num_bytes):
        return [
            all_reduce_s(num_bytes, places, SUMMIT, a) for a in ("hybrid", "hierarchical", "ring")
        ]

    below, above = times(0.99 * crossing), times(1.01 * crossing)
    assert below[0] == below[1] < below[2]
    assert above[0] == above[2] < above[1]


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical", "hybrid"])
def test_more_bytes_take_longer_and_many_of_them_go_at_the_bandwidth(algorithm):
    places = Places(240, 6)
    times = [all_reduce_s(2.0**n, places, SUMMIT, algorithm) for n in range(29, 40)]

    assert all(less < more < 2.1 * less for less, more in pairwise(times))
    assert times[-1] >= 2.0**39 * 2 * 239 / 240 / 24e9


@pytest.fixture
def all_reduces_take(monkeypatch):
    """Let an all-reduce of any size take so long."""
    return lambda each_s: monkeypatch.setattr(planning_exchange, "all_reduce_s", lambda *_: each_s)


def buckets_of(mib: float) -> Hardware:
    return SUMMIT.model_copy(update={"bucket_mib": mib})


@pytest.mark.parametrize(
    ("bucket", "each_s", "exposed_s"),
    [
        (100, 1.0, 1.0),  # one bucket is ready when all of backward is over
        (25, 1.0, 1.0),  # four, each hidden but the last
        (25, 2.0, 5.0),  # ready after 1 of 4 s, then 8 s of exchange without a pause
        # 40, 40 and 20: ready after 1.6, 3.2, 4 s; through after 2.6, 4.2, 5.2
        (40, 1.0, 1.2),
    ],
)
def test_a_bucket_is_exchanged_when_it_is_ready_and_the_one_before_is_through(
    all_reduces_take, bucket, each_s, exposed_s
):
    all_reduces_take(each_s)

    found = exchange(100 * 2**20, 4.0, Places(2, 2), buckets_of(bucket))

    assert found.exposed_s == pytest.approx(exposed_s)
    assert found.total_s == pytest.approx(-(-100 // bucket) * each_s)


def test_nothing_hides_behind_no_backward_pass(all_reduces_take):
    all_reduces_take(1.0)

    found = exchange(100 * 2**20, 0.0, Places(2, 2), buckets_of(25))

    assert found.exposed_s == found.total_s == pytest.approx(4.0)
