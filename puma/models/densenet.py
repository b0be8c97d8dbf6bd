"""DenseNet-BC for small images (Huang et al., 2017), put together from torchvision's blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision import models

from puma.errors import ModelError
from puma.settings import ModelSettings


class DenseNet(models.DenseNet):  # type: ignore[misc] # torchvision has no types
    """torchvision's DenseNet with the stem of Huang et al. for 32×32 images, as in the paper.

    One 3×3 convolution with stride 1 to 2·``growth`` channels replaces the 7×7 convolution with
    stride 2, its norm and its pooling, which shrink 28×28 to 7×7 before the first block. Each
    transition halves the channels (the paper's reduction 0.5, fixed in torchvision), the height
    and the width. No ReLU works in place: hooks and forward-mode derivatives need what it would
    overwrite.
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

    def forward(self, images: Tensor) -> Tensor:
        """(n, classes) logits of (n, channels, height, width) ``images``."""
        # torchvision's own applies its last ReLU in place, whatever the modules say.
        logits: Tensor = self.classifier(self.features(images).relu().mean(dim=(2, 3)))
        return logits


def densenet(shape: Sequence[int], classes: int, settings: ModelSettings) -> DenseNet:
    """Build a DenseNet-BC for images.

    Args:
        shape: (channels, height, width) of one image.
        classes: How many.
        settings: ``blocks``, the layers of each dense block (the paper's listing leaves them
            open), ``growth`` and ``bottleneck``. The defaults have 58,786 parameters for 10
            classes of grey images, and end at 3×3 for 28×28.

    Raises:
        ModelError: The shape is another, or the transitions would halve the images to nothing.
    """
    if len(shape) != 3:
        raise ModelError(
            f"densenet needs images of shape (channels, height, width), got {tuple(shape)}; "
            "choose model.name mlp or linear for rows of numbers"
        )
    channels, height, width = shape
    most = min(height, width).bit_length()  # each transition between two blocks halves
    if len(settings.blocks) > most:
        raise ModelError(
            f"{len(settings.blocks)} dense blocks halve images of {height}×{width} to nothing; "
            f"give model.blocks at most {most} entries"
        )
    return DenseNet(channels, classes, settings.blocks, settings.growth, settings.bottleneck)
