"""A small transformer that predicts the next byte of a text, and the text as a dataset; plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


class Text(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Every stretch of `length` bytes of a file, with the bytes that follow each of them."""

    def __init__(self, path: str, length: int) -> None:
        self._bytes = torch.tensor(list(Path(path).read_bytes()))
        self._length = length

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = index * self._length
        return self._bytes[begin : begin + self._length], self._bytes[begin + 1 : begin + self._length + 1]


class LanguageModel(nn.Module):
    """Embeddings, two blocks of causal attention, and a score for each byte that may be next."""

    def __init__(self, length: int, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.scores = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores (batch, 256, place) for tokens (batch, place), as `cross_entropy` takes them."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.blocks(self.bytes(tokens) + self.places(places), mask=self.mask, is_causal=True)
        return self.scores(hidden).transpose(1, 2)
