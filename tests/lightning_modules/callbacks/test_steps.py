"""What callbacks ask of the current micro-batch, and are asked."""

from pytorch_lightning.callbacks import Callback

from lightning_modules.callbacks.steps import without_idle_hooks


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
