"""Impossible runs are refused in the users' words."""

import pytest

from sweeper.spec.run_spec import run_spec


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch": 0}, r"^batch must be a whole number, 1 or more; got batch=0\.$"),
        ({"batch": "big"}, r"^batch must be a whole number, 1 or more; got batch='big'\.$"),
        (
            {"batch": 61568},
            r"^batch must not exceed the examples of an epoch; got batch=61568,",
        ),
        ({"batch": 3841}, r"^batch must be a multiple of ranks x bn_span = 1 x 128 = 128; got"),
        ({"devices": 0}, r"^devices must be a whole number, 1 or more; got devices=0\.$"),
        ({"warmup": -1}, r"^warmup must be a number of epochs, 0 or more; got warmup=-1\.$"),
        (
            {"warmup": 30},
            r"^warmup must be shorter than the training; got warmup=30 of epochs=30\. "
            r"Train longer or warm up for fewer epochs\.$",
        ),
        ({"base_lr": -0.1}, r"^base_lr must be a number above 0, or null; got base_lr=-0.1\.$"),
        (
            {"base_lr": float("nan")},
            r"^base_lr must be a number above 0, or null; got base_lr=nan\.$",
        ),
        ({"seed": 1.5}, r"^seed must be a whole number, 0 or more; got seed=1.5\.$"),
        ({"lr_rule": {"name": "sqr"}}, r"^lr_rule must be one of .*linear.*; got lr_rule='sqr'\."),
        ({"precision": "32"}, r"got precision='32'\. Did you mean precision=32-true\?$"),
        ({"micro_batch": 0}, r"^micro_batch must be a whole number, 1 or more, or auto; got"),
        ({"timeout_s": -5}, r"^timeout_s must be a number above 0, or null; got timeout_s=-5\.$"),
    ],
    ids=str,
)
def test_a_wrong_value_gets_a_sentence(config, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        run_spec(config(**changes))


def test_the_demo_grid_is_what_the_paper_would_call_it(config):
    spec = run_spec(config(batch=30720, warmup=10, base_lr=0.1, base_batch=256))

    assert spec.schedule.peak_lr == pytest.approx(12.0)  # FACTS 1.1: 0.1 * 30720 / 256
    assert spec.steps_per_epoch == 2
    assert spec.schedule.warmup_steps == 20
    assert spec.split.global_batch == 30720


def test_two_ranks_share_the_global_batch(config):
    spec = run_spec(config(batch=3840, devices=2))

    assert spec.split.world_size == 2
    assert spec.split.rank_batch == 1920
    assert spec.split.global_batch == 3840


def test_keys_that_are_off_may_be_absent_as_in_an_earlier_versions_config(default_config):
    on = {key: v for key, v in default_config.items() if v is not None and v is not False}

    assert len(on) < len(default_config)
    assert run_spec(on).run_id == run_spec(default_config).run_id
