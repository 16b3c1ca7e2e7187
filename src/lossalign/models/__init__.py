"""Networks, and `build_model`, which makes one from its name."""

from lossalign.models.build import build_model, check_model
from lossalign.models.densenet import DenseNet
from lossalign.models.embedding import EmbeddingCNN, ResNetTrunk, UnitOutput, unit_length
from lossalign.models.face import FaceResNet
from lossalign.models.heads import with_cosine_head
from lossalign.models.registry import ENDINGS, MODELS, ModelEntry
from lossalign.models.resnet import ResNet
from lossalign.models.small import MLP, SmallCNN
from lossalign.models.wide_resnet import WideResNet

__all__ = [
    "ENDINGS",
    "MLP",
    "MODELS",
    "DenseNet",
    "EmbeddingCNN",
    "FaceResNet",
    "ModelEntry",
    "ResNet",
    "ResNetTrunk",
    "SmallCNN",
    "UnitOutput",
    "WideResNet",
    "build_model",
    "check_model",
    "unit_length",
    "with_cosine_head",
]
