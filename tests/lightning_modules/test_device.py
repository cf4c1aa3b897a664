"""What must hold on a GPU: run there by `make gpu`, and on the CPU where there is none."""

from collections import Counter
from traceback import extract_stack

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span
from lightning_modules.layers.keyed_dropout import key_dropout
from lightning_modules.process.device import AsyncScalar

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
pytestmark = pytest.mark.gpu


class Waits(TorchDispatchMode):
    """Counts by place what makes the host wait for the device.

    That is a value that Python reads before the pass after the one that it comes from has begun.
    """

    def __init__(self):
        super().__init__()
        self.places, self.passes, self.made = Counter(), 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        self.passes += func is torch.ops.aten.nll_loss_forward.default
        if func is torch.ops.aten._local_scalar_dense.default:
            ours = [frame for frame in extract_stack() if "/torch/" not in frame.filename]
            if self.made.get(args[0].data_ptr(), self.passes) == self.passes:
                self.places[ours[-2].name] += 1
        result = func(*args, **kwargs or {})
        if isinstance(result, torch.Tensor):
            self.made[result.data_ptr()] = self.passes
        return result


@pytest.mark.parametrize("method", ["", "gradient_clip=1.0"])
def test_a_step_does_not_wait_for_the_device(run_words, monkeypatch, method):
    monkeypatch.setattr(
        AsyncScalar, "ready", property(lambda _: False, lambda *_: None), raising=False
    )
    counted = []
    for steps in (3, 9):
        with Waits() as waits:
            run_words(
                "batch=256", "micro_batch=128", "epochs=1", "warmup=0", "schedule=constant",
                f"accelerator={'gpu' if ON_GPU else 'cpu'}", "model.channels=[4,8]",
                *[method] * bool(method), name=f"{steps}", num_train_examples=256 * steps,
            )  # fmt: skip
        counted.append(waits.places)

    assert counted[0]["item"] == counted[1]["item"] == 2  # norm and loss, at the end of the epoch
    assert not counted[1] - counted[0]


def test_masks_of_dropout_are_those_of_the_cpu():
    position = StepPosition()
    layer = key_dropout(nn.Dropout(0.5), seed=1, position=position)
    x = torch.ones(64, 100)
    masks = []
    for device in ("cpu", DEVICE):
        position.move(epoch=3, step=0, first_example=128, examples=64)
        masks.append(layer.to(device)(x.to(device)).cpu())

    assert torch.equal(*masks)
    assert 0.4 < (masks[0] == 0).double().mean() < 0.6


def test_batchnorm_over_a_span_is_that_of_the_cpu():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 5, 4, 4, generator=generator, dtype=torch.float64)
    results = []
    for device in ("cpu", DEVICE):
        position = StepPosition()
        plain = nn.BatchNorm2d(5).double()
        layer = fix_batchnorm_span(plain, span=8, position=position).to(device)
        position.move(epoch=0, step=0, first_example=0, examples=32)
        inputs = x.to(device, copy=True).requires_grad_()
        layer(inputs).pow(3).sum().backward()
        results.append(inputs.grad.cpu())

    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    parts = torch.cat([nn.BatchNorm2d(5).double()(part) for part in x.split(8)])
    assert not torch.allclose(parts, nn.BatchNorm2d(5).double()(x))


def test_a_row_has_the_device_and_the_memory_of_the_training(run_words):
    """Lightning moves the module back to the CPU before the row is written."""
    where = ("accelerator=gpu",) if ON_GPU else ()
    record = run_words(*where, "batch=256", "epochs=1", "data.num_train_examples=512", "warmup=0",
                       "schedule=constant")  # fmt: skip

    assert record["device_kind"] == (torch.cuda.get_device_name() if ON_GPU else "cpu")
    if ON_GPU:
        assert record["peak_memory_gib"] == torch.cuda.max_memory_allocated() / 2**30
