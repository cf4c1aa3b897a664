"""LB-SAC: offline reinforcement learning with an ensemble of critics and a large batch.

SAC-N learns a policy from recorded transitions alone. It values an action by the *least* of N
critics; where the data say little the critics disagree, so the least is low, and the policy keeps
to what it knows. N had to be large (10 to 500), which is slow. Nikulin et al. 2022, "Q-Ensemble for
Offline RL: Don't Scale the Ensemble, Scale the Batch Size", claim that a larger batch, with the
rate multiplied by the square root of the ratio of batches, allows a smaller ensemble, penalizes
unknown actions more strongly, and converges 3 to 4 times faster on average than a large ensemble.

Here the world is gymnasium's Pendulum-v1 and the data are 25,600 transitions of a noisy controller
that pumps energy, whose mean return is -754; uniform torques get -1,225. To see the claim, train
with 2, 5, 10 and 20 critics at batches of 64, 256 and 1,024, and look at `val/return` and
`val/disagreement`. A training step is one batch, and steps each of the three optimizers once, so
Lightning's `global_step` grows by 3.

    module, data = LBSACModule(num_critics=5), TransitionsDataModule(batch_size=256)
    pl.Trainer(max_epochs=12).fit(module, data)

docs/results/lbsac.md is that sweep: the larger batch helps, and these data are too easy for the
other half, since 2 critics learn as fast as 20.

Source: An et al. 2021, arXiv:2110.01548 (SAC-N); Nikulin et al. 2022, arXiv:2211.11092 (LB-SAC).
"""

from .data import TransitionsDataModule
from .module import LBSACModule

__all__ = ["LBSACModule", "TransitionsDataModule"]
