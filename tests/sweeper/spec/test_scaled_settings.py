"""What rules make of betas, epsilon, weight decay and the average, against their papers."""

import math

import pytest

from sweeper.console.planned_runs import describe_settings
from sweeper.spec.run_spec import run_spec
from sweeper.store.run_columns import planned_columns

ADAMW = ("optimizer=adamw", "base_lr=1e-3", "bn_span=1", "warmup=0", "data=cifar10")
SETTINGS = ("beta1", "beta2", "eps", "weight_decay", "ema_decay")


@pytest.fixture
def planned(grid):
    """The run of some words with AdamW, and the columns of its settings."""

    def plan(*words):
        (config,) = grid(*ADAMW, *words)
        spec = run_spec(config)
        columns = planned_columns(spec)
        return spec, [columns[name] for name in SETTINGS]

    return plan


SDE = ("lr_rule=adam_sde", "base_batch=256", "batch=4096", "optimizer.betas=[0.95,0.999]")
HALF_LIFE = ("lr_rule=half_life", "optimizer.betas=[0.9,0.95]", "base_batch=512", "batch=1")
DECAY = ("wd_rule=timescale", "optimizer.weight_decay=0.1", "base_batch=256", "batch=4096")
AVERAGE = ("ema_rule=scaled", "ema_decay=0.999", "base_batch=256", "batch=4096")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Malladi et al. at 16 times the batch: .999 becomes .984, epsilon a quarter.
        (SDE, {"beta1": 1 - 16 * 0.05, "beta2": 0.984, "eps": 2.5e-9, "weight_decay": 0.01}),
        # Marek et al.: .95 at 512 becomes .99989982 at 1; .999 at 16 times .98412.
        (HALF_LIFE, {"beta1": 0.9, "beta2": 0.99989982, "eps": 1e-8}),
        (("lr_rule=half_life", *SDE[1:3]), {"beta1": 0.9, "beta2": 0.98412}),
        # Wang & Aitchison at 16 times the batch: .4 with the square root's rate, 1.6 at a fixed.
        ((*DECAY, "lr_rule=sqrt"), {"weight_decay": 0.4, "beta2": 0.999}),
        ((*DECAY, "lr_rule=none"), {"weight_decay": 1.6}),
        ((*DECAY, "lr_rule=linear"), {"weight_decay": 0.1}),
        # Busbridge et al.: 16 steps of the base batch in one.
        (AVERAGE, {"ema_decay": 0.999**16, "weight_decay": 0.01}),
    ],
)
def test_settings_follow_the_papers(planned, words, expected):
    _, columns = planned(*words)

    found = dict(zip(SETTINGS, columns, strict=True))
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_the_half_life_is_the_same_number_of_examples_at_every_batch(planned):
    spans = {
        batch: -batch / math.log2(planned("lr_rule=half_life", f"batch={batch}")[1][1])
        for batch in (16, 256, 4096)
    }

    assert spans == pytest.approx(dict.fromkeys(spans, 256 / -math.log2(0.999)))


@pytest.mark.parametrize("words", [SDE, HALF_LIFE, DECAY, AVERAGE], ids=lambda words: words[0])
def test_at_the_base_batch_nothing_changes(planned, words):
    base = next(f"base_{word}" for word in words if word.startswith("batch="))
    plain = [word for word in words if not word.startswith(("lr_rule", "wd_rule", "ema_rule"))]

    spec, columns = planned(*words, base)

    other, expected = planned(*plain, base, "lr_rule=none")
    assert columns == pytest.approx(expected)
    assert spec.run_id != other.run_id


def test_a_beta_of_zero_stays(planned):
    """RMSprop's rule: without momentum there is no first beta to scale."""
    _, columns = planned(*SDE[:3], "optimizer.betas=[0.0,0.999]")

    assert columns[:2] == pytest.approx([0, 0.984])


@pytest.mark.parametrize("settings", ["+optimizer.eps=[1e-30,1e-3]", "+optimizer.betas=3"])
def test_settings_of_the_users_own_optimizer_may_be_of_any_kind(grid, settings):
    """Adafactor has two epsilons; what is no number of ours has no column."""
    own = ("optimizer.name=mine", "optimizer._target_=mine.Adafactor", "base_lr=0.1", settings)

    columns = planned_columns(run_spec(*grid(*own)))

    assert (columns["beta1"], columns["eps"]) == (None, None)


def test_the_plan_says_what_the_rules_made(planned):
    spec, _ = planned(*SDE, "wd_rule=timescale", "ema_decay=0.999", "ema_rule=scaled")

    assert describe_settings(spec) == (
        "batch 4,096: beta1 0.2, beta2 0.984, eps 2.5e-09, weight_decay 0.04, "
        "ema_decay 0.984119 (base_batch=256)."
    )
    assert describe_settings(planned("lr_rule=sqrt")[0]) == ""


def test_a_rule_of_the_users_own_may_give_every_number(planned, tmp_path, monkeypatch):
    """nanochat's: rate and decay with the root of the batch, the decay also with the data."""
    (tmp_path / "nano_rule.py").write_text(
        "def nano(at, *, base_examples):\n"
        "    root = at.batch_ratio ** 0.5\n"
        "    factor = root * base_examples / at.trained_examples\n"
        "    return {'lr': at.base_lr * root, 'weight_decay': lambda decay: decay * factor}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rule = ("lr_rule.name=nano", "+lr_rule._target_=nano_rule.nano", "+lr_rule.base_examples=51200")

    spec, columns = planned("lr_rule=none", *rule, "batch=1024", "steps=200", "epochs=null")

    assert spec.schedule.peak_lr == pytest.approx(2e-3)
    assert columns[3] == pytest.approx(0.01 * 2 * 51_200 / 204_800)
