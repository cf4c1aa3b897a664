"""Transitions of Pendulum-v1 under a noisy swing-up controller, and seeds of test episodes."""

import gymnasium
import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

EPISODE = 200  # steps, after which gymnasium truncates
MAX_TORQUE = 2.0


def swing_up(observations: np.ndarray) -> np.ndarray:
    """Torques `[n, 1]` that pump energy into the pendulum and hold it near the top.

    `torque = sign(speed) * (energy at rest on top - energy)`; near the top a spring and a damper.
    Ours, after Astrom and Furuta 2000, Automatica 36(2).
    """
    cosine, sine, speed = observations.T
    missing_energy = 5 - (speed**2 / 6 + 5 * cosine)
    pump = np.sign(speed) * missing_energy
    hold = -12 * sine - 3 * speed
    return np.where(cosine > 0.9, hold, pump)[:, None]


def record(num_episodes: int, least_noise: float, seed: int) -> torch.Tensor:
    """Transitions `[num_episodes * 200, 8]`: state (3), torque, reward, next state (3).

    A uniform torque replaces the controller's with a probability that rises from `least_noise` in
    the first episode to nearly 1 in the last.
    """
    draw = np.random.default_rng(seed)
    noise = np.linspace(least_noise, 1, num_episodes, endpoint=False)[:, None]
    worlds = gymnasium.make_vec("Pendulum-v1", num_envs=num_episodes, vectorization_mode="sync")
    states, _ = worlds.reset(seed=[seed + i for i in range(num_episodes)])
    rows = []
    for _ in range(EPISODE):
        uniform = draw.uniform(-MAX_TORQUE, MAX_TORQUE, noise.shape)
        is_noise = draw.random(noise.shape) < noise
        torques = np.where(is_noise, uniform, swing_up(states)).clip(-MAX_TORQUE, MAX_TORQUE)
        next_states, rewards, _, _, _ = worlds.step(torques.astype(np.float32))
        rows.append(np.hstack([states, torques, rewards[:, None], next_states]))
        states = next_states
    worlds.close()
    return torch.tensor(np.concatenate(rows), dtype=torch.float32)


class TransitionsDataModule(pl.LightningDataModule):
    def __init__(
        self,
        batch_size: int = 256,
        num_episodes: int = 128,
        least_noise: float = 0.3,
        data_seed: int = 0,
        num_val_episodes: int = 10,
    ):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        wanted = self.hparams
        self.transitions = record(wanted.num_episodes, wanted.least_noise, wanted.data_seed)
        self.val_seeds = list(range(10_000, 10_000 + wanted.num_val_episodes))

    def train_dataloader(self):
        return DataLoader(
            self.transitions, batch_size=self.hparams.batch_size, shuffle=True, drop_last=True
        )

    def val_dataloader(self):
        return DataLoader(self.val_seeds, batch_size=self.hparams.num_val_episodes)
