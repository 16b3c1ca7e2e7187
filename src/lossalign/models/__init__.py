"""Networks, and `build_model`, which makes one by its name from a generator."""

from lossalign.models.build import build_model
from lossalign.models.densenet import DenseNet
from lossalign.models.resnet import ResNet
from lossalign.models.small import MLP, SmallCNN
from lossalign.models.wide_resnet import WideResNet

__all__ = ["MLP", "DenseNet", "ResNet", "SmallCNN", "WideResNet", "build_model"]
