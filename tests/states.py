"""What a call must leave as it was."""

from __future__ import annotations

import torch


def state_of(model):
    return (
        [module.training for module in model.modules()],
        [parameter.requires_grad for parameter in model.parameters()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        {name: value.clone() for name, value in model.state_dict().items()},
        [(id(p), p.data_ptr(), p._version) for p in model.parameters()],
        torch.get_rng_state(),
        torch.is_grad_enabled(),
    )
