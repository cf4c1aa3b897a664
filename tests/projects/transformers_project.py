"""transformers: a small GPT-2 on padded sequences of made-up lengths, with its own collator."""

import lightning as L
import torch
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForLanguageModeling,
    GPT2Config,
    PreTrainedTokenizerFast,
)


class Text(L.LightningDataModule):
    def __init__(self, batch_size=8):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        words = Tokenizer(models.WordLevel({str(i): i for i in range(50)}, unk_token="0"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")
        self.collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
        self.texts = [
            {"input_ids": [1 + (start + step) % 40 for step in range(5 + start % 8)]}
            for start in range(120)
        ]

    def loader(self, texts, shuffle=False):
        return DataLoader(texts, self.batch_size, shuffle=shuffle, collate_fn=self.collate)

    def train_dataloader(self):
        return self.loader(self.texts[:96], shuffle=True)

    def val_dataloader(self):
        return self.loader(self.texts[96:])


class Causal(L.LightningModule):
    def __init__(self):
        super().__init__()
        sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
        dropout = {"embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0}
        config = GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0)
        self.model = AutoModelForCausalLM.from_config(config)

    def training_step(self, batch, batch_idx):
        return self.model(**batch).loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.model(**batch).loss, batch_size=len(batch["input_ids"]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def tokens(batch):
    """Labels that are predicted: a causal model shifts them, so the first of a sequence is not."""
    return (batch["labels"][:, 1:] != -100).sum()
