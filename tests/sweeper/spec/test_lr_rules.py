"""Learning-rate rules against the tables of their papers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sweeper import CONFIG_FOLDER
from sweeper.spec import lr_rules
from sweeper.spec import run_spec as runs
from sweeper.spec.run_spec import run_spec
from sweeper.spec.sentences import union_models

READ = TypeAdapter(lr_rules.LRRule)


def peak_lr(rule, **batches):
    return runs.peak_lr(READ.validate_python(rule), lr_rules.Scaling(**batches, trained_examples=1))


def warmup_length(rule, **lengths):
    return runs.warmup_length(READ.validate_python(rule), **lengths)


# Goyal et al.'s reference: 0.1 at 256. Each row: the rule, the peak at 7,680 and at 30,720.
TABLE = [
    ({"name": "none"}, 0.1, 0.1),
    ({"name": "linear"}, 3.0, 12.0),
    ({"name": "sqrt"}, 0.1 * 30**0.5, 0.1 * 120**0.5),
    ({"name": "adam_sde"}, 0.1 * 30**0.5, 0.1 * 120**0.5),
    ({"name": "half_life", "exponent": 0.16}, 0.1 * 30**0.16, 0.1 * 120**0.16),
    ({"name": "power", "exponent": 0.75}, 0.1 * 30**0.75, 0.1 * 120**0.75),
    ({"name": "legw", "warmup_exponent": 1}, 0.1 * 30**0.5, 0.1 * 120**0.5),
    ({"name": "adascale", "smoothing": None}, 0.1, 0.1),
    ({"name": "linear_capped", "max_lr": 5.0}, 3.0, 5.0),
    ({"name": "saturating", "noise_scale": 1e4}, 1.74027, 3.02240),  # 4.00625 in the end
    # surge at B/B_n = 1 and 4, from B/B_n = 1/30: heights 1 and 0.8 over 2/(sqrt(30)+sqrt(1/30))
    ({"name": "surge", "noise_scale": 7680}, 0.282990, 0.226392),
]


@pytest.mark.parametrize(("rule", "at_7680", "at_30720"), TABLE, ids=[r["name"] for r, *_ in TABLE])
def test_rules_give_the_published_peaks(rule, at_7680, at_30720):
    peaks = [
        peak_lr(rule, base_lr=0.1, global_batch=batch, base_batch=256) for batch in (7680, 30720)
    ]

    assert peaks == pytest.approx([at_7680, at_30720], rel=1e-5)


def test_every_rule_has_a_row():
    names = {path.stem for path in (CONFIG_FOLDER / "lr_rule").glob("*.yaml")}

    assert {rule["name"] for rule, *_ in TABLE} == names
    assert names == union_models(lr_rules.LRRule).keys() - {"_target_"}


@given(
    base_lr=st.floats(1e-4, 10.0),
    base_batch=st.integers(1, 10**6),
    rule=st.sampled_from([row[0] for row in TABLE]),
)
def test_every_rule_gives_the_base_rate_at_the_base_batch(base_lr, base_batch, rule):
    rule = {**rule, "max_lr": 10.0} if "max_lr" in rule else rule

    peak = peak_lr(rule, base_lr=base_lr, global_batch=base_batch, base_batch=base_batch)

    assert peak == pytest.approx(base_lr)


@pytest.mark.parametrize(
    ("batch", "height"), [(0.16, 0.198), (1, 0.470588), (4, 0.8), (16, 1), (64, 0.8), (1600, 0.198)]
)
def test_surge_has_the_heights_of_its_paper(batch, height):
    """Li et al.'s curve at a critical batch of 16 examples: it rises to it, and falls beyond."""
    rule = {"name": "surge", "noise_scale": 16}

    peak = peak_lr(rule, base_lr=1.0, global_batch=batch, base_batch=16)

    assert peak == pytest.approx(height, abs=5e-5)


LEGW = {"name": "legw", "warmup_exponent": 1}


@pytest.mark.parametrize("doublings", range(7))
def test_legw_gives_its_papers_table(doublings):
    """512 to 32k: rates 2**2 to 2**5, warmups 10/2**6 to 10 epochs (You et al. 2019, table 4)."""
    batch = 512 * 2**doublings

    peak = peak_lr(LEGW, base_lr=4.0, global_batch=batch, base_batch=512)
    epochs = warmup_length(LEGW, warmup=10 / 64, batch_ratio=batch / 512)

    assert (peak, epochs) == pytest.approx((2 ** (2 + doublings / 2), 10 / 2 ** (6 - doublings)))


def test_a_rule_of_the_users_own_comes_from_one_file(tmp_path, monkeypatch):
    (tmp_path / "cube_rule.py").write_text(
        "def cube_root(at, *, strength):\n"
        "    return at.base_lr * strength * at.batch_ratio ** (1 / 3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rule = {"name": "cube", "_target_": "cube_rule.cube_root", "strength": 2}

    assert peak_lr(rule, base_lr=0.1, global_batch=2048, base_batch=256) == pytest.approx(0.4)


@pytest.mark.parametrize("group", ["lr_rule", "schedule"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"force": 2},  # Python names keyword-only arguments from 3.12 on
            r"must accept the settings in its config; got force: missing a required (keyword-only )"
            r"?argument: 'strength'\.$",
        ),
        (
            {"strength": 2},
            r"must not raise or exit; got TypeError: unsupported operand .*/faulty\.py, line 2\. "
            r"Correct it or its settings\.$",
        ),
    ],
)
def test_wrong_settings_and_a_fault_of_a_function_of_the_users_own_are_told_apart(
    config, group, tmp_path, monkeypatch, settings, said
):
    (tmp_path / "faulty.py").write_text("def faulty(at, *, strength):\n    return strength + at\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"name": "mine", "_target_": "faulty.faulty", **settings}

    with pytest.raises(ValueError, match=rf"^{group}\._target_=faulty\.faulty {said}"):
        run_spec(config(**{group: own}))


def test_a_rule_that_gives_no_rate_is_refused(tmp_path, monkeypatch):
    (tmp_path / "nan_rule.py").write_text("def nan(at):\n    return float('nan')\n")
    monkeypatch.syspath_prepend(tmp_path)
    rule = {"name": "nan", "_target_": "nan_rule.nan"}

    with pytest.raises(ValueError, match="lr_rule=nan must give a positive, finite rate; got nan"):
        peak_lr(rule, base_lr=0.1, global_batch=512, base_batch=256)
