"""A language model in the manner of Hugging Face: padded batches, masks, a loss per token.

The text is 4,000 sentences of a small grammar whose verbs agree with a noun several words back.
The collator pads each batch to its longest sentence and gives `input_ids`, `attention_mask` and
`labels`, where -100 marks what is not predicted.
The loss is the mean over the *tokens* of a batch, so sentences do not weigh the same, and the
mean of two halves is not the mean of the whole.

    pl.Trainer(max_epochs=5).fit(TextModule(), TextDataModule(batch_size=50))
"""

from .data import TextDataModule
from .module import TextModule

__all__ = ["TextDataModule", "TextModule"]
