"""DenseNet-BC for small pictures (Huang et al., 2017), put together from torchvision's blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision import models

from puma.errors import ModelError


class DenseNet(models.DenseNet):
    """torchvision's DenseNet with the stem of Huang et al. for 32×32 pictures, as in the paper.

    One 3×3 convolution with stride 1 to 2·``growth`` channels replaces the 7×7 convolution with
    stride 2, its norm and its pooling, which shrink 28×28 to 7×7 before the first block. Each
    transition halves the channels (the paper's reduction 0.5, fixed in torchvision), the height
    and the width. No ReLU works in place: hooks and forward-mode derivatives need what it would
    overwrite.

    (n, channels, height, width) pictures to (n, classes) logits.
    """

    def __init__(
        self, channels: int, classes: int, blocks: tuple[int, ...], growth: int, bottleneck: int
    ) -> None:
        super().__init__(growth, blocks, 2 * growth, bottleneck, num_classes=classes)
        for unused in ("norm0", "relu0", "pool0"):
            delattr(self.features, unused)
        stem = nn.Conv2d(channels, 2 * growth, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight)  # as torchvision does for its other convolutions
        self.features.conv0 = stem
        for module in self.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False

    def forward(self, pictures: Tensor) -> Tensor:
        # torchvision's own applies its last ReLU in place, whatever the modules say.
        return self.classifier(self.features(pictures).relu().mean(dim=(2, 3)))


def densenet(
    shape: Sequence[int],
    classes: int,
    *,
    blocks: tuple[int, ...] = (2, 2, 2, 2),
    growth: int = 12,
    bottleneck: int = 4,
) -> DenseNet:
    """A DenseNet-BC for pictures of ``shape`` (channels, height, width).

    ``blocks``: layers of each dense block (the paper's listing leaves them open). The
    defaults have 58,786 parameters for 10 classes of grey pictures, and end at 3×3 for 28×28.
    Raises ModelError for another shape, and for pictures that the transitions would halve to
    nothing.
    """
    if len(shape) != 3:
        raise ModelError(
            f"densenet needs pictures of shape (channels, height, width), got {tuple(shape)}; "
            "choose model.name mlp or linear for rows of numbers"
        )
    channels, height, width = shape
    most = min(height, width).bit_length()  # each transition between two blocks halves
    if len(blocks) > most:
        raise ModelError(
            f"{len(blocks)} dense blocks halve pictures of {height}×{width} to nothing; "
            f"give model.blocks at most {most} entries"
        )
    return DenseNet(channels, classes, blocks, growth, bottleneck)
