"""SAC-N: an actor, an ensemble of critics, and an entropy temperature, each with its optimizer."""

from copy import deepcopy

import gymnasium
import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

from .data import EPISODE, MAX_TORQUE

STATE, ACTION = 3, 1
REWARD_SCALE = 0.1  # brings values near 1
STATE_SCALE = (1.0, 1.0, 8.0)  # the largest cosine, sine and speed


class EnsembleLinear(nn.Module):
    """`num_members` linear layers at once: `[members, batch, in]` to `[members, batch, out]`."""

    def __init__(self, num_members: int, num_in: int, num_out: int):
        super().__init__()
        bound = num_in**-0.5  # as nn.Linear has it
        self.weight = nn.Parameter(torch.empty(num_members, num_in, num_out))
        self.bias = nn.Parameter(torch.empty(num_members, 1, num_out))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs):
        return torch.baddbmm(self.bias, inputs, self.weight)


class Critics(nn.Module):
    """The values `[critics, batch]` of actions, by every critic of the ensemble."""

    def __init__(self, num_critics: int, width: int):
        super().__init__()
        self.num_critics = num_critics
        self.layers = nn.Sequential(
            EnsembleLinear(num_critics, STATE + ACTION, width),
            nn.ReLU(),
            EnsembleLinear(num_critics, width, width),
            nn.ReLU(),
            EnsembleLinear(num_critics, width, 1),
        )

    def forward(self, states, actions):
        inputs = torch.cat([states, actions], dim=-1)
        return self.layers(inputs.expand(self.num_critics, *inputs.shape)).squeeze(-1)


class Actor(nn.Module):
    """A normal distribution of actions, squashed into -1 to 1."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(STATE, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 2 * ACTION),
        )

    def forward(self, states):
        """The action without noise."""
        return self.layers(states).chunk(2, dim=-1)[0].tanh()

    def sample(self, states):
        """An action, and the logarithm of its density (Haarnoja et al. 2018, arXiv:1801.01290)."""
        mean, log_deviation = self.layers(states).chunk(2, dim=-1)
        normal = Normal(mean, log_deviation.clamp(-5, 2).exp())
        draw = normal.rsample()
        log_slope = 2 * (np.log(2) - draw - F.softplus(-2 * draw))  # of tanh, stable
        return draw.tanh(), (normal.log_prob(draw) - log_slope).sum(dim=-1)


class LBSACModule(pl.LightningModule):
    def __init__(
        self,
        num_critics: int = 5,
        lr: float = 2e-3,
        width: int = 64,
        discount: float = 0.97,
        target_rate: float = 0.02,
        target_entropy: float = -1.0,
        initial_alpha: float = 0.1,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.actor = Actor(width)
        self.critics = Critics(num_critics, width)
        self.target_critics = deepcopy(self.critics).requires_grad_(requires_grad=False)
        self.log_alpha = nn.Parameter(torch.tensor(initial_alpha).log())
        self.register_buffer("state_scale", torch.tensor(STATE_SCALE))

    def configure_optimizers(self):
        parts = self.actor.parameters(), self.critics.parameters(), [self.log_alpha]
        return [torch.optim.Adam(part, lr=self.hparams.lr) for part in parts]

    def training_step(self, batch, batch_idx):
        states, actions, rewards, next_states = batch.split([STATE, ACTION, 1, STATE], dim=1)
        states, next_states = states / self.state_scale, next_states / self.state_scale
        actor, critics, alpha = self.optimizers()
        with actor.toggle_model():
            drawn, log_density = self.actor.sample(states)
            values = self.critics(states, drawn).amin(dim=0)
            actor_loss = (self.log_alpha.exp() * log_density - values).mean()
            self.take_step(actor, actor_loss)
        with alpha.toggle_model():
            missing_entropy = (log_density.detach() + self.hparams.target_entropy).mean()
            self.take_step(alpha, -self.log_alpha * missing_entropy)
        with critics.toggle_model():
            targets = self.targets(REWARD_SCALE * rewards.squeeze(1), next_states)
            errors = self.critics(states, actions / MAX_TORQUE) - targets
            critic_loss = errors.square().mean(dim=1).sum()
            self.take_step(critics, critic_loss)
        self.follow_critics()
        self.log_dict({"train/actor": actor_loss, "train/critics": critic_loss})

    def take_step(self, optimizer, loss):
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    @torch.no_grad()
    def targets(self, rewards, next_states):
        """`reward + discount * (least value of the next action - alpha * its log density)`.

        No state of the pendulum is the last: its episodes are cut off, they do not end.
        """
        drawn, log_density = self.actor.sample(next_states)
        values = self.target_critics(next_states, drawn).amin(dim=0)
        return rewards + self.hparams.discount * (values - self.log_alpha.exp() * log_density)

    @torch.no_grad()
    def follow_critics(self):
        pairs = zip(self.target_critics.parameters(), self.critics.parameters(), strict=True)
        for target, source in pairs:
            target.lerp_(source, self.hparams.target_rate)

    def validation_step(self, seeds, batch_idx):
        """Play an episode from each seed: its return, and the critics' standard deviation."""
        worlds = gymnasium.make_vec("Pendulum-v1", num_envs=len(seeds), vectorization_mode="sync")
        observations, _ = worlds.reset(seed=seeds.tolist())
        returns, disagreement = np.zeros(len(seeds)), torch.zeros(())
        for _ in range(EPISODE):
            states = torch.as_tensor(observations, device=self.device) / self.state_scale
            actions = self.actor(states)
            disagreement += self.critics(states, actions).std(dim=0).mean().cpu() / EPISODE
            observations, rewards, _, _, _ = worlds.step(MAX_TORQUE * actions.cpu().numpy())
            returns += rewards
        worlds.close()
        self.log("val/return", returns.mean(), prog_bar=True, batch_size=len(seeds))
        self.log("val/disagreement", disagreement, batch_size=len(seeds))
