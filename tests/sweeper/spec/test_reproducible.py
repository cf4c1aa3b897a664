"""Bit for bit on any number of ranks: refused where it cannot be had."""

import pytest

from sweeper.spec.run_spec import run_spec

EXACT = {"reproducible": True, "micro_batch": 384}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"reproducible": "yes"},
            r"^reproducible must be true or false, or null; got reproducible='yes'\.$",
        ),
        ({"micro_batch": "auto"}, r"^micro_batch must be a number with reproducible=true"),
        (
            {"precision": "16-mixed"},
            r"^reproducible=true cannot be combined with .*; got precision=16-mix",
        ),
        (
            {"comm_hook": {"name": "bf16"}},
            r"micro-batches; got comm_hook=bf16\. Use others, or repr",
        ),
        ({"noise_span": 384}, r"got a measured noise scale\. Use others"),
    ],
)
def test_what_adds_up_in_another_order_is_refused(config, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        run_spec(config(**EXACT | changes))


def test_it_does_not_change_which_run_it_is(config):
    """The sums are the same up to rounding."""
    plain = run_spec(config(micro_batch=384))

    assert run_spec(config(**EXACT)).run_id == plain.run_id
