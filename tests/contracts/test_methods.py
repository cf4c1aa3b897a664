"""The contract of every method, optimizer, rule and schedule: one row each, on every layout.

A row is trained in one micro-batch, in several, on two ranks and in two shards, and stopped after
an epoch and resumed, also from ranks to shards and back. All are the same run. An option in conf/
without a row fails.
"""

from pathlib import Path

import pytest
from acceptance import accept_layouts

from sweeper.spec.exclusions import list_exclusions

CONF = Path(__file__).parents[2] / "conf"
GROUPS = ("comm_hook", "lr_rule", "optimizer", "perturbation", "schedule")
COMMON = [
    "batch=96", "base_batch=48", "epochs=2", "warmup=0", "schedule=constant", "base_lr=0.01",
    "bn_span=24", "precision=64-true", "data.num_train_examples=384",
]  # fmt: skip
SPAN, ADAM = "optimizer.gradient_span=24", ("base_lr=0.001",)
AT = "schedule.milestones=[1]"

#: By option or key, the words beside it that a short run needs.
ROWS: dict[str, tuple[str, ...]] = {
    "comm_hook=all_reduce": (),
    "comm_hook=bf16": (),
    "comm_hook=fp16": (),
    "comm_hook=hierarchical": (),
    "comm_hook=hybrid": ("comm_hook.ranks_per_node=1", "comm_hook.threshold_mib=0.01"),
    "comm_hook=post_local_sgd": ("comm_hook.workers=1", "comm_hook.start_epoch=0"),
    "comm_hook=powersgd": ("comm_hook.start_step=2",),
    "lr_rule=adam_sde": ("optimizer=adam", *ADAM),
    "lr_rule=adascale": ("base_batch=24",),
    "lr_rule=half_life": ("optimizer=adam", *ADAM),
    "lr_rule=legw": ("warmup=0.5",),
    "lr_rule=linear": (),
    "lr_rule=linear_capped": ("lr_rule.max_lr=0.015",),
    "lr_rule=none": (),
    "lr_rule=power": (),
    "lr_rule=saturating": ("lr_rule.noise_scale=100",),
    "lr_rule=sqrt": (),
    "lr_rule=surge": ("lr_rule.noise_scale=100", "optimizer=adam", *ADAM),
    "optimizer=adam": ADAM,
    "optimizer=adamw": ADAM,
    "optimizer=bsi_adam": (SPAN, *ADAM),
    "optimizer=clars": (SPAN, "base_lr=0.3"),
    "optimizer=lamb": ADAM,
    "optimizer=lans": ADAM,
    "optimizer=lars": ("base_lr=0.3",),
    "optimizer=muon": ADAM,
    "optimizer=nesterov": (),
    "optimizer=schedule_free": ADAM,
    "optimizer=sgd": (),
    "optimizer=soap": ADAM,
    "optimizer=vr_lamb": (SPAN, *ADAM),
    "optimizer=vr_lars": (SPAN, "base_lr=0.3"),
    "optimizer=vr_sgd": (SPAN,),
    "perturbation=conadv": (),
    "perturbation=none": (),
    "perturbation=sam": ("perturbation.gradient_span=24",),
    "schedule=adaptive_batch": (
        "base_batch=24",
        "schedule.smoothness=10",
        "schedule.largest_smoothness=20",
        "schedule.strong_convexity=0.001",
        "schedule.squared_distance=0.1",
        "schedule.max_batch=192",
    ),
    "schedule=batch_by_rate": ("schedule.mean_batch=192", "schedule.max_batch=384"),
    "schedule=batch_warmup": ("schedule.positions=[1]", "schedule.critical_batch=[192]"),
    "schedule=constant": (),
    "schedule=cosine": (),
    "schedule=goyal2017": (),
    "schedule=goyal2017_small": (),
    "schedule=growing_batch": (AT, "schedule.max_batch=192"),
    "schedule=linear_decay": (),
    "schedule=mccord2021": (),
    "schedule=mccord2021_small": (),
    "schedule=mlperf_rn50": (),
    "schedule=nado2021": (),
    "schedule=periodic_decay": (),
    "schedule=polynomial": (),
    "schedule=seesaw": ("schedule.at=[0.5]",),
    "schedule=wsd": (),
    "schedule=you2017": (),
    "ema_decay=0.9": (),
    "fsdp_blocks=[BasicBlock]": ("strategy=fsdp", "model=resnet8_half"),
    "fsdp_gradients=sharded": ("strategy=fsdp",),
    "gradient_clip=0.1": (),
    "gradient_delay=2": (),
    "gradient_delay=[0,2]": (),
    "label_smoothing=0.1": (),
    "no_decay_on_norm_and_bias=true": (),
    "noise_span=24": (),
    "update_angle=true": (),
    "zero_init_last_norm=true": ("model=resnet8_half",),
}
#: How far layouts may be apart where a method's arithmetic is coarse, and why; None: not compared.
COARSE = {
    "comm_hook=bf16": 0.05,  # gradients are exchanged in bfloat16
    "comm_hook=fp16": 0.05,  # in float16
    "comm_hook=post_local_sgd": None,  # has one number of ranks
    "comm_hook=powersgd": None,  # what is compressed depends on the ranks
    "optimizer=soap": None,  # eigenvectors turn by rounding where eigenvalues are near
}


#: What has no shards: it needs whole weights or gradients on each rank.
UNSHARDED = {
    "comm_hook=bf16",
    "comm_hook=fp16",
    "comm_hook=hierarchical",
    "comm_hook=hybrid",
    "comm_hook=post_local_sgd",
    "comm_hook=powersgd",
    "gradient_delay=[0,2]",
    "optimizer=soap",
    "perturbation=conadv",
}


def test_every_option_in_conf_has_a_row():
    options = {f"{group}={p.stem}" for group in GROUPS for p in (CONF / group).glob("*.yaml")}
    assert options - {"optimizer=module"} <= {*ROWS}  # the user's, in habits.py


def test_the_docs_have_the_table_of_what_excludes_what():
    assert "\n".join(list_exclusions()) in (CONF.parent / "docs" / "recipes.md").read_text()


@pytest.mark.slow
def test_every_method_is_the_same_on_every_layout_and_after_a_resume(grid):
    configs = {name: grid(*COMMON, name, *words)[0] for name, words in ROWS.items()}

    far = accept_layouts(configs)

    wrong = {
        (name, layout): by
        for name, layouts in far.items()
        for layout, by in layouts.items()
        if (most := 0.0 if layout == "resumed" else COARSE.get(name, 1e-9)) is not None
        if by is None or by > most
    }
    assert wrong == {}
    assert {name for name, layouts in far.items() if "shards" not in layouts} == UNSHARDED
