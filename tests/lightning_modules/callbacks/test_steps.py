"""What callbacks ask of the current step."""

import pytest
import torch
from pytorch_lightning.callbacks import Callback
from torch import nn

from lightning_modules.callbacks.steps import gradient_norm, without_idle_hooks


class Ends(Callback):
    """It has one hook of each micro-batch."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        del trainer, pl_module, outputs, batch
        self.last = batch_idx


def test_hooks_that_a_class_leaves_empty_cannot_be_called_and_its_own_are(fit, line, batches):
    ends = without_idle_hooks(Ends())
    fit(line(), [ends], batches(3), accumulate=1)

    assert ends.last == 2
    assert ends.on_train_batch_start is None
    assert ends.on_before_zero_grad is None


@pytest.mark.parametrize("dtypes", [[], ["float32"] * 3, ["float64", "bfloat16", "float32"]])
def test_the_norm_of_a_gradient_is_torchs(dtypes):
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(2))]  # has no gradient
    for size, dtype in enumerate(dtypes, 1):
        values = torch.randn(size, size, generator=generator).to(getattr(torch, dtype))
        parameters.append(nn.Parameter(torch.zeros_like(values)))
        parameters[-1].grad = values

    gradients = [p.grad for p in parameters[1:]]
    assert gradient_norm(parameters) == torch.nn.utils.get_total_norm(gradients).item()
