"""The initialisation of the image networks."""

from __future__ import annotations

from torch import nn


def kaiming_(network: nn.Module) -> None:
    """Draw convolutions from N(0, 2 / fan_in) (He et al. 2015) and set the biases of linear layers to 0.

    BatchNorm keeps scale 1 and shift 0, and linear weights keep PyTorch's U(−1/√fan_in, 1/√fan_in).
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
