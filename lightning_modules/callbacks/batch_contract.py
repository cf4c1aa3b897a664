"""The batch contract: every optimizer step is checked to train on exactly the global batch."""

from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer

from lightning_modules.data.batch_counts import count_examples
from lightning_modules.modules.steps import AroundEvaluation, ends_step
from lightning_modules.optimizers.run_strategy import RunStrategy
from lightning_modules.process.world import all_reduce, gather_states, restore_state
from lightning_modules.rank_plan import RankPlan
from sweeper.spec.sentences import several
from sweeper.spec.trainer_settings import callback_refusal


class BatchContractBroken(Exception):
    """An optimizer step did not train on exactly the requested global batch."""


class BatchContract(AroundEvaluation):
    """Counts the examples of each step on all ranks, and fails a run that departs from its plan.

    Each rank counts on its own; the counts are summed over ranks at each evaluation and at the end
    of each epoch.
    """

    def __init__(self, plan: RankPlan) -> None:
        self._plan = plan
        self._examples = self._taken = 0
        self._examples_of_steps: list[int] = []
        self.realised_batch_min: int | None = None  # examples of a step, over all ranks
        self.realised_batch_max: int | None = None
        self.step_tokens_min: int | None = None  # of a step, where batches are in tokens
        self.step_tokens_max: int | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps of the epoch so far [steps]."""
        return len(self._examples_of_steps)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse callbacks that would change the batch, also those from `configure_callbacks`.

        ValueError names what to use instead.
        """
        for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            kinds = [kind.__name__ for kind in type(callback).__mro__]
            if (msg := callback_refusal(kinds, type(callback).__name__)) is not None:
                raise ValueError(msg)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the examples of the micro-batch.

        BatchContractBroken if it had no loss, or its batch was not followed by one optimizer step
        through Lightning.
        """
        if pl_module.automatic_optimization and not outputs:  # Lightning skips it and goes on
            msg = (
                "every micro-batch must have a loss, as it is counted as trained on; training_step "
                f"returned none for micro-batch {batch_idx + 1} of epoch "
                f"{trainer.current_epoch + 1}. Return a loss, such as (outputs * 0).sum(), or "
                "leave such examples out."
            )
            raise BatchContractBroken(msg)
        planned = self._plan.num_examples(trainer.current_epoch, batch_idx)
        num = count_examples(batch, planned)
        # a later one is found in its step's sum; for the first there is a remedy to name
        if self.realised_batch_max is None and not self.steps and not self._examples:
            self._check_first(num, planned)
        self._examples += num
        if ends_step(trainer, batch_idx):
            self._examples_of_steps.append(self._examples)
            self._examples = 0
            self._check_step(trainer, pl_module)

    def _check_first(self, num: int, micro_batch: int) -> None:
        if num != micro_batch:
            msg = (
                f"every micro-batch must show its {micro_batch} examples; the first shows {num}. "
                "Either the collate function makes or drops some, or no entry has the examples "
                "first, as where time is first: then add one, such as their lengths."
            )
            raise BatchContractBroken(msg)

    def _check_step(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(trainer.strategy, RunStrategy):
            return
        taken = trainer.strategy.num_steps - self._taken
        self._taken += taken
        batch = f"batch {self.steps} of epoch {trainer.current_epoch + 1}"
        if taken and trainer.strategy.num_bare_steps:
            msg = (
                "every optimizer must be stepped through Lightning, or its rate is not the run's; "
                f"{batch} had a step that was not. Step what self.optimizers() gives, without "
                "use_pl_optimizer=False."
            )
            raise BatchContractBroken(msg)
        # by hand, a module may step several optimizers, as a GAN does
        if taken != 1 and (not taken or pl_module.automatic_optimization):
            msg = (
                "every batch must be followed by its optimizer step, which Lightning takes; "
                f"{batch} had {taken} steps. Have optimizer_step or training_step step the "
                "optimizer that it is given, or that self.optimizers() gives, at every batch."
            )
            raise BatchContractBroken(msg)

    def on_steps_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the examples of the epoch's steps, summed over ranks, with the global batch.

        BatchContractBroken if they differ, or the epoch ends too early.
        """
        if isinstance(trainer.strategy, RunStrategy):
            trainer.strategy.check_exchanged()
        counted = all_reduce(torch.tensor(self._examples_of_steps, device=pl_module.device))
        smallest, largest = (int(f(counted)) if len(counted) else 0 for f in (torch.min, torch.max))
        self.realised_batch_min = min(smallest, self.realised_batch_min or smallest)
        self.realised_batch_max = max(largest, self.realised_batch_max or largest)
        epoch = trainer.current_epoch
        steps, batches = self._plan.steps(epoch), list[int]()
        for first, end in self._plan.phases(epoch):
            between = self._plan.examples_in(epoch, end) - self._plan.examples_in(epoch, first)
            batches += [between // (end - first)] * (end - first)
        if self._plan.filled:
            places, tokens = self._plan.filled(epoch)
            batches = (places[:steps, -1] - places[:steps, 0]).tolist()
            if len(counted):  # which were compared when they were loaded
                trained = tokens[: len(counted)].tolist()
                self.step_tokens_min = min(*trained, self.step_tokens_min or trained[0])
                self.step_tokens_max = max(*trained, self.step_tokens_max or trained[0])
        is_due = len(counted) == steps or self._plan.is_evaluated(epoch, len(counted))
        if not (is_due and counted.tolist() == batches[: len(counted)]):
            asked = " to ".join(map(str, sorted({min(batches), max(batches)})))
            msg = (
                f"every epoch must have {several(steps, 'optimizer step')} of {asked} examples; "
                f"epoch {epoch + 1} had {several(len(counted), 'step')} of {smallest} to "
                f"{largest} examples. The data or the ranks differ from the plan, a hook ended the "
                "epoch, or no entry of a batch has its examples first: then add one, such as their "
                "lengths."
            )
            raise BatchContractBroken(msg)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the epoch, unless that was done, and count the next."""
        super().on_train_epoch_end(trainer, pl_module)
        self._examples_of_steps = []

    def state_dict(self) -> dict[str, Any]:
        """The range so far and, within an epoch, every rank's counts."""
        return {
            "range": [self.realised_batch_min, self.realised_batch_max],
            "tokens": [self.step_tokens_min, self.step_tokens_max],
            "ranks": gather_states(self._examples_of_steps) if self.steps else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, on any number of ranks."""
        self.realised_batch_min, self.realised_batch_max = state_dict["range"]
        self.step_tokens_min, self.step_tokens_max = state_dict.get("tokens", (None, None))
        if state_dict["ranks"]:
            self._examples_of_steps = restore_state(
                state_dict["ranks"],
                lambda ranks, share: [share * sum(step) for step in zip(*ranks, strict=True)],
            )
