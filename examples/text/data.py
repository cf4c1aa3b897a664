"""Sentences of a small grammar, and the collator that pads them."""

import random

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

NOUNS = {"dog": "dogs", "cat": "cats", "bird": "birds", "child": "children", "fish": "fish"}
VERBS = {"sees": "see", "follows": "follow", "hears": "hear", "likes": "like"}
ENDINGS = {"sleeps": "sleep", "sings": "sing", "runs": "run"}
WORDS = ["<pad>", "<s>", "</s>", "the", "that", "near", ".", *NOUNS, *NOUNS.values()]
WORDS += [*VERBS, *VERBS.values(), *ENDINGS, *ENDINGS.values()]
TOKEN = {word: number for number, word in enumerate(dict.fromkeys(WORDS))}
NOT_PREDICTED = -100


def noun_phrase(draw: random.Random, depth: int) -> tuple[list[str], bool]:
    """Words of a noun phrase, and whether its head is a plural."""
    plural = draw.random() < 0.5
    singular = draw.choice(list(NOUNS))
    words = ["the", NOUNS[singular] if plural else singular]
    if depth and draw.random() < 0.5:
        inner, inner_plural = noun_phrase(draw, depth - 1)
        verb = draw.choice(list(VERBS))
        words += draw.choice(
            [
                ["near", *inner],
                ["that", *inner, VERBS[verb] if inner_plural else verb],
                ["that", VERBS[verb] if plural else verb, *inner],
            ]
        )
    return words, plural


def sentence(draw: random.Random) -> list[int]:
    words, plural = noun_phrase(draw, depth=3)
    ending = draw.choice(list(ENDINGS))
    words = ["<s>", *words, ENDINGS[ending] if plural else ending, ".", "</s>"]
    return [TOKEN[word] for word in words]


def pad(sentences: list[list[int]]) -> dict[str, torch.Tensor]:
    """Pad to the longest sentence; the first token and the padding are not predicted."""
    longest = max(map(len, sentences))
    rest = [longest - len(tokens) for tokens in sentences]
    labels = [[NOT_PREDICTED, *tokens[1:]] for tokens in sentences]
    rows = list(zip(sentences, labels, rest, strict=True))
    return {
        "input_ids": torch.tensor([tokens + [TOKEN["<pad>"]] * n for tokens, _, n in rows]),
        "attention_mask": torch.tensor([[1] * len(tokens) + [0] * n for tokens, _, n in rows]),
        "labels": torch.tensor([row + [NOT_PREDICTED] * n for _, row, n in rows]),
    }


class TextDataModule(pl.LightningDataModule):
    def __init__(self, batch_size: int = 50, num_sentences: int = 4000, num_val: int = 500):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        draw = random.Random(0)
        self.train_set = [sentence(draw) for _ in range(self.hparams.num_sentences)]
        self.val_set = [sentence(draw) for _ in range(self.hparams.num_val)]

    def train_dataloader(self):
        return DataLoader(
            self.train_set, batch_size=self.hparams.batch_size, shuffle=True, collate_fn=pad
        )

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=100, collate_fn=pad)
