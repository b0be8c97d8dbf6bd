"""Which networks can be differentiated as often as influence needs, and by which kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from puma.errors import ModelError

_CUDA, _MHA = torch.backends.cuda, torch.backends.mha
# Of the kernels for attention, whether each is on, its switch, and what influence needs. They are
# switched by hand, as sdpa_kernel takes 20 times as long: a tenth of a small network's pass.
_ATTENTION: tuple[tuple[Callable[[], bool], Callable[[bool], object], bool], ...] = (
    (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp, True),
    (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp, False),
    (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp, False),
    (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp, False),
    (_MHA.get_fastpath_enabled, _MHA.set_fastpath_enabled, False),
)


@contextmanager
def differentiable_kernels(*, recurrent: bool) -> Iterator[None]:
    """Take those of PyTorch's kernels that have derivatives forwards, backwards and twice.

    The fused ones for attention and recurrent layers have a first gradient at most.

    Args:
        recurrent: Whether the network has recurrent layers. In others, convolutions would round
            differently and be slower.
    """
    before = [enabled() for enabled, _, _ in _ATTENTION]
    try:
        for _, switch, needed in _ATTENTION:
            switch(needed)
        if not recurrent:
            yield
            return
        with (
            torch.backends.mkldnn.flags(enabled=False),
            torch.backends.cudnn.flags(enabled=False),
        ):
            yield
    finally:
        for (_, switch, _), was in zip(_ATTENTION, before, strict=True):
            switch(was)


# Layers whose derivatives PyTorch lacks or gets wrong, and what does the same without them.
WAYS_OUT: dict[type[nn.Module], str] = {
    nn.Hardsigmoid: "use nn.functional.relu6(x + 3) / 6",
    nn.CrossMapLRN2d: "use nn.LocalResponseNorm",
    nn.EmbeddingBag: "use nn.Embedding and the mean, sum or maximum over its rows",
    _WeightNorm: "call torch.nn.utils.parametrize.remove_parametrizations on its layer",
    torch.jit.ScriptModule: "pass the module that it was scripted or traced from",
}
EMBEDDING: dict[str, Callable[[nn.Embedding], bool]] = {
    "padding_idx": lambda layer: layer.padding_idx is not None,
    "max_norm": lambda layer: layer.max_norm is not None,
    "scale_grad_by_freq": lambda layer: layer.scale_grad_by_freq,
    "sparse": lambda layer: layer.sparse,
}


def require_supported(model: nn.Module) -> None:
    """Raise ModelError, with the way out, for a layer that influence cannot differentiate."""
    for name, module in model.named_modules():
        if remedy := _way_out(module):
            raise ModelError(
                f"{type(module).__name__} {name!r} cannot be differentiated as influence needs; "
                f"{remedy}"
            )


def require_finite(model: nn.Module) -> None:
    """Raise ModelError, naming the parameters, unless all weights are finite."""
    bad = {
        name: int((~parameter.isfinite()).sum())
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point()
    }
    if any(bad.values()):
        listed = ", ".join(f"{name} ({count})" for name, count in bad.items() if count)
        raise ModelError(
            f"{sum(bad.values())} weights of the model are NaN or infinite: {listed}; train it "
            "again, with a lower learning rate"
        )


def _way_out(module: nn.Module) -> str | None:
    hooks = module._forward_pre_hooks.values()
    if any(isinstance(hook, WeightNorm) for hook in hooks):
        return "call torch.nn.utils.remove_weight_norm on it"
    if any(isinstance(hook, SpectralNorm) for hook in hooks):
        return "use torch.nn.utils.parametrizations.spectral_norm"
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        return (
            "it keeps no running statistics, so one example's loss depends on its batch: train "
            "it with track_running_stats=True"
        )
    if isinstance(module, nn.Embedding) and module.weight.requires_grad:
        wrong = [setting for setting, used in EMBEDDING.items() if used(module)]
        if wrong:
            return f"it has {', '.join(wrong)}: make it without, or freeze its weight"
    return next((way for kind, way in WAYS_OUT.items() if isinstance(module, kind)), None)
