"""A causal transformer of two layers."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics.text import Perplexity

from .data import NOT_PREDICTED, TOKEN

LONGEST = 64  # tokens of a sentence


class TinyLM(nn.Module):
    def __init__(self, width: int = 48, num_layers: int = 2, num_heads: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(len(TOKEN), width)
        self.positions = nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(
            width, num_heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(TOKEN))

    def forward(self, input_ids, attention_mask):
        length = input_ids.shape[1]
        hidden = self.tokens(input_ids) + self.positions.weight[:length]
        future = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).triu(1)
        hidden = self.layers(hidden, mask=future, src_key_padding_mask=attention_mask == 0)
        return self.head(self.norm(hidden))


class TextModule(pl.LightningModule):
    def __init__(self, lr: float = 2e-3, weight_decay: float = 0.01, width: int = 48):
        super().__init__()
        self.save_hyperparameters()
        self.model = TinyLM(width)
        self.perplexity = Perplexity(ignore_index=NOT_PREDICTED)

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids, attention_mask)

    def predictions(self, batch):
        """Each position's logits, and the label of the next position."""
        logits = self(batch["input_ids"], batch["attention_mask"])
        return logits[:, :-1], batch["labels"][:, 1:]

    def training_step(self, batch, batch_idx):
        logits, labels = self.predictions(batch)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOT_PREDICTED)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        logits, labels = self.predictions(batch)
        self.perplexity(logits, labels)
        self.log("val/perplexity", self.perplexity, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(
            self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay
        )
