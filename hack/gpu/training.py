"""A GPT with bf16 weights and Adam in fp32, whose state is about 14 bytes a parameter. It keeps a device busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Size:
    """A model and its batch."""

    width: int
    layers: int
    heads: int
    words: int
    length: int  # tokens of a sequence
    batch: int  # sequences


SIZES = {
    "tiny": Size(64, 2, 2, 512, 32, 2),
    "default": Size(1_024, 24, 16, 50_304, 1_024, 8),  # 355 M parameters, 5 GB of state
    "large": Size(2_048, 24, 16, 50_304, 1_024, 4),  # 1.3 B parameters, 18 GB of state
}


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention and a feed-forward layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before, self.after = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv, self.projection = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the block, of the same shape as `x`: (batch, length, width)."""
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attention = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.projection(attention.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class Gpt(nn.Module):  # type: ignore[misc, unused-ignore]
    """Tokens to logits; the output layer shares the embedding's weight."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.last = nn.LayerNorm(size.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits, (batch, length, words), for tokens of the shape (batch, length)."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.last(self.blocks(x)) @ self.words.weight.t()


class MasterAdam(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Adam with fp32 weights and moments beside bf16 parameters."""

    def __init__(self, parameters: Any, lr: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": lr})
        for group in self.param_groups:
            for each in group["params"]:
                master = each.detach().float()
                self.state[each] = {
                    "master": master,
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                }

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, closure: Any = None) -> None:  # type: ignore[override, unused-ignore]
        """Update all parameters in place from their gradients. closure: unused."""
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            gradients = [each.grad.float() for each in parameters]
            masters, firsts, seconds = (
                [self.state[each][name] for each in parameters] for name in ("master", "exp_avg", "exp_avg_sq")
            )
            torch._foreach_lerp_(firsts, gradients, 0.1)
            torch._foreach_mul_(seconds, 0.95)
            torch._foreach_addcmul_(seconds, gradients, gradients, 0.05)
            roots = torch._foreach_sqrt(seconds)
            torch._foreach_add_(roots, 1e-8)
            torch._foreach_addcdiv_(masters, firsts, roots, value=-group["lr"])
            torch._foreach_copy_(parameters, masters)


class Training:
    """A model that takes step after step on random tokens."""

    def __init__(self, size: Size, device: str) -> None:
        torch.manual_seed(1)
        with torch.device(device):
            self.model = Gpt(size).to(torch.bfloat16)
            self.tokens = torch.randint(0, size.words, (size.batch, size.length + 1))
        self.optimizer = MasterAdam(self.model.parameters())
        self.device = torch.device(device)

    def step(self) -> None:
        """Queue one step on the device. On a GPU it may run after the return."""
        logits = self.model(self.tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint has to hold."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def state_bytes(self) -> int:
        """Return the number of bytes of the state's tensors."""
        moments = [each for state in self.optimizer.state.values() for each in state.values()]
        return sum(each.nbytes for each in [*self.model.parameters(), *moments])
