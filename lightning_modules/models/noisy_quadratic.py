"""The noisy quadratic model: a loss whose expected values can be computed in advance."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sweeper.spec.values import Positive


class NoisyQuadratic(nn.Module):
    """Minimise ``sum_i h_i w_i^2 / 2`` from gradients ``h_i w_i + sqrt(c_i) z_i`` per example.

    Curvatures are ``h_i = i ** -decay``. The noise ``z`` is the input, standard normal; its
    covariance is a multiple of the curvature, ``c_i = s h_i``, with ``s`` such that the noise scale
    at the start, ``tr(H C) / (g' H g)``, is the given number of examples: there, the best first
    step at a global batch of `noise_scale` gains half of what the best step of full gradients
    gains. Weights start at 1. Evaluation is free of noise.

    `input_shape` is the number of weights; `num_classes` does not matter; `noise_scale` is in
    examples.

    Source:
        Zhang et al. 2019, arXiv:1907.04164, section 3, with ``h_i = 1 / i`` and ``c_i = h_i``
        there; the noise scale of McCandlish et al. 2018, arXiv:1812.06162, section 2.2.
    """

    curvatures: Tensor
    noise_stds: Tensor

    def __init__(
        self, input_shape: tuple[int], num_classes: int, *, decay: float, noise_scale: Positive
    ) -> None:
        super().__init__()
        del num_classes
        curvatures, noise = curvatures_and_noise(
            input_shape[0], decay=decay, noise_scale=noise_scale
        )
        self.register_buffer("curvatures", torch.from_numpy(curvatures).float())
        self.register_buffer("noise_stds", torch.from_numpy(noise).float().sqrt())
        self.weights = nn.Parameter(torch.ones(input_shape[0]))

    def forward(self, noise: Tensor) -> Tensor:
        """Loss of each example, shape (n,), from its noise, shape (n, weights)."""
        loss = (self.curvatures * self.weights**2).sum() / 2
        if not self.training:
            return loss.expand(len(noise))
        return loss + noise @ (self.noise_stds * self.weights)

    def score(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss; there is no right and wrong, so the accuracy is not a number."""
        del labels
        return outputs.mean(), torch.full_like(outputs[0].detach(), torch.nan)


def curvatures_and_noise(
    num_weights: int, *, decay: float, noise_scale: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The ``h_i``, and the variances ``c_i`` of an example's gradient, of `NoisyQuadratic`."""
    curvatures = np.arange(1, num_weights + 1, dtype=np.float64) ** -decay
    gradient_curvature = (curvatures**3).sum()  # g' H g with g = H w, w = 1
    scale = noise_scale * gradient_curvature / (curvatures**2).sum()  # tr(H C) = s tr(H^2)
    return curvatures, scale * curvatures
