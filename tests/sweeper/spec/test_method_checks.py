"""Switches that are wrong, or do not go together, are refused in the users' words."""

import pytest

from sweeper.spec.run_spec import run_spec

PARTS = ("optimizer=vr_sgd",)
LOCAL = ("comm_hook=post_local_sgd", "comm_hook.workers=1", "comm_hook.start_epoch=1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("label_smoothing=1",),
            "label_smoothing must be a number from 0 to below 1; got label_smoothing=1.",
        ),
        (
            ("ema_decay=1.5",),
            "ema_decay must be a number from 0 to below 1, or null; got ema_decay=1.5.",
        ),
        (
            ("gradient_clip=0",),
            "gradient_clip must be a number above 0, or null; got gradient_clip=0.",
        ),
        (
            ("zero_init_last_norm=1",),
            "zero_init_last_norm must be true or false; got zero_init_last_norm=1.",
        ),
        (
            (*PARTS, "micro_batch=128"),
            "micro_batch must equal optimizer.gradient_span, the size of the parts that are "
            "compared; got micro_batch=128, optimizer.gradient_span=384. Leave micro_batch=auto, "
            "or set optimizer.gradient_span=128, which changes the experiment.",
        ),
        (
            (*PARTS, "optimizer.gradient_span=3840"),
            "batch must contain at least two spans of optimizer.gradient_span examples, to compare "
            "their gradients; got batch=3840, optimizer.gradient_span=3840. Set "
            "optimizer.gradient_span to 1920 or less.",
        ),
        (
            (*PARTS, "perturbation=sam", "perturbation.gradient_span=128"),
            "perturbation.gradient_span must equal optimizer.gradient_span, the size of the parts "
            "that are compared; got perturbation.gradient_span=128, "
            "optimizer.gradient_span=384. Set both to the same number.",
        ),
        (
            (*PARTS, "gradient_clip=1"),
            "gradient_clip must be null with an optimizer that compares the gradients of parts of "
            "the batch; got gradient_clip=1. Remove gradient_clip.",
        ),
        (
            ("comm_hook=hierarchical", "comm_hook.ranks_per_node=2", "devices=3"),
            "comm_hook.ranks_per_node must divide devices x num_nodes, so that all nodes have the "
            "same number; got comm_hook.ranks_per_node=2, 3 ranks. Usually it equals devices.",
        ),
        (
            ("precision=16-mixed", "accelerator=cpu"),
            "precision=16-mixed needs a GPU, since Lightning takes bfloat16 for it on CPUs; got "
            "accelerator=cpu without one. Use precision=bf16-mixed.",
        ),
        (
            ("comm_hook.nccl_algo=star",),
            "comm_hook.nccl_algo must be one of ring, tree, or null; "
            "got comm_hook.nccl_algo='star'.",
        ),
        (
            ("comm_hook.nccl_algo=tree", "accelerator=cpu"),
            "comm_hook.nccl_algo must be null on CPUs, where gloo exchanges gradients by its own "
            "ring; got comm_hook.nccl_algo=tree, accelerator=cpu. Remove it.",
        ),
        (
            ("perturbation=sam", "perturbation.rho=0"),
            "perturbation.rho must be a number above 0; got perturbation.rho=0.",
        ),
        (
            ("comm_hook=powersgd", "comm_hook.start_step=1"),
            "comm_hook.start_step must be a whole number, 2 or more; got comm_hook.start_step=1.",
        ),
        (
            (*LOCAL, "devices=2"),
            "devices x num_nodes must equal comm_hook.workers, each of which takes local steps; "
            "got devices=2, num_nodes=1, comm_hook.workers=1. Train on 1 ranks.",
        ),
        (
            (*LOCAL, "ema_decay=0.9"),
            "comm_hook=post_local_sgd cannot be combined with methods that keep one state for all "
            "ranks: ema_decay, precision=16-mixed, optimizers with a gradient_span, a measured "
            "noise (noise_span), a mean over all items (loss_items); got ema_decay. "
            "Change ema_decay, or use comm_hook=all_reduce.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_switch_gets_a_sentence(grid, words, sentence):
    (config,) = grid(*words)

    with pytest.raises(ValueError) as refused:  # noqa: PT011  the whole text is compared
        run_spec(config)

    assert str(refused.value) == sentence


def test_the_algorithm_of_nccl_is_no_part_of_what_is_trained(grid):
    configs = grid("comm_hook.nccl_algo=null,ring,tree")

    assert len({run_spec(config).run_id for config in configs}) == 1


def test_a_gradient_span_fixes_the_micro_batch_on_every_layout(grid):
    configs = grid(*PARTS, "batch=7680", "devices=1,2,4,5")

    splits = [run_spec(config).split for config in configs]

    assert [split.micro_batch for split in splits] == [384] * 4
    assert [split.accumulation_steps * split.world_size for split in splits] == [20] * 4


def test_a_gradient_span_that_ranks_cannot_share_is_refused(grid):
    (config,) = grid(*PARTS, "devices=4")

    with pytest.raises(ValueError, match=r"^batch must be a multiple of micro_batch x ranks = 384"):
        run_spec(config)
