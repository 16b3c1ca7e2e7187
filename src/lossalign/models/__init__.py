"""Networks, and `build_model`, which makes one by its name from a generator."""

from lossalign.models.build import build_model
from lossalign.models.densenet import DenseNet
from lossalign.models.embedding import EmbeddingCNN, ResNetTrunk, UnitOutput, unit_length
from lossalign.models.face import FaceResNet
from lossalign.models.resnet import ResNet
from lossalign.models.small import MLP, SmallCNN
from lossalign.models.wide_resnet import WideResNet

__all__ = [
    "MLP",
    "DenseNet",
    "EmbeddingCNN",
    "FaceResNet",
    "ResNet",
    "ResNetTrunk",
    "SmallCNN",
    "UnitOutput",
    "WideResNet",
    "build_model",
    "unit_length",
]
