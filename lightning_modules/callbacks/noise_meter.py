"""Measuring the noise of each optimizer step's gradient."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from lightning_modules.optimizers.micro_gradients import MicroGradients, squared_norm
from sweeper.spec.gradient_noise import Noise, NoiseAverage, noise_of_batch, noise_scale


class NoiseMeter:
    """The noise of gradients, from those of each `span` examples of a batch, on all ranks.

    It costs one more all-reduce per step, of one number per parameter.

    Args:
        span: examples of each gradient that is compared: the micro-batch [examples].
    """

    def __init__(self, span: int) -> None:
        self._span = span
        self._micro = MicroGradients(squared_norm)
        self._epoch = NoiseAverage(smoothing=1.0)

    def watch(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        accumulation_steps: Callable[[], int],
        loss_scale: Callable[[], float],
    ) -> None:
        """Look at every micro-batch's gradient from now on; see `MicroGradients.watch`."""
        self._micro.watch(parameters, accumulation_steps=accumulation_steps, loss_scale=loss_scale)

    def measure(self, model: nn.Module, gradient_norm: Tensor, global_batch: int) -> Noise:
        """The noise of a step whose gradient is complete.

        Args:
            model: with the mean gradient of the global batch in its parameters.
            gradient_norm: of all of it.
            global_batch: examples of the step [examples].
        """
        parameters = [p for p in model.parameters() if p.grad is not None]
        self._micro.gather(parameters)
        mean_square = torch.stack(self._micro.means(parameters)).sum()
        noise = noise_of_batch(
            float(mean_square),
            float(gradient_norm) ** 2,
            span=self._span,
            parts=global_batch // self._span,
        )
        self._epoch.add(noise)
        return noise

    def state(self) -> dict[str, float]:
        """The average over the epoch so far, for the checkpoint."""
        return self._epoch.state()

    def load_state(self, state: dict[str, float]) -> None:
        """Go on from what `state` gave."""
        self._epoch = NoiseAverage(**state)

    def of_epoch(self) -> float | None:
        """The noise scale over the steps since this was last asked; None without any [examples]."""
        epoch, self._epoch = self._epoch, NoiseAverage(smoothing=1.0)
        return noise_scale(epoch.mean()) if epoch.weight else None
