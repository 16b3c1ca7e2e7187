"""Data sets, their splits, and the batches that children train on."""

from lossalign.data.cifar import load_cifar10, load_cifar100
from lossalign.data.class_splits import split_classes
from lossalign.data.dataset import Dataset, Examples, Pairs
from lossalign.data.digest import SplitDigests, changed
from lossalign.data.digits import load_digits, load_turned_digits
from lossalign.data.fetch import check, fetch
from lossalign.data.folders import load_image_folder
from lossalign.data.lfw import LFW, load_lfw, without_identities
from lossalign.data.omniglot import load_omniglot
from lossalign.data.products import open_products
from lossalign.data.registry import DATA_SOURCES, Loaded, SourceSettings, load_source
from lossalign.data.sources import PublishedFile, Source, known
from lossalign.data.splits import Fraction, OfTrain, PerClass, Splits, long_tailed_counts, split
from lossalign.data.streaming import MappedImages, StreamedBatches, map_image_folder, open_image_folder
from lossalign.data.streams import BatchStream, JointStream
from lossalign.data.tables import load_table
from lossalign.data.transforms import Transform, augment, fit_transform, normalise

__all__ = [
    "DATA_SOURCES",
    "LFW",
    "BatchStream",
    "Dataset",
    "Examples",
    "Fraction",
    "JointStream",
    "Loaded",
    "MappedImages",
    "OfTrain",
    "Pairs",
    "PerClass",
    "PublishedFile",
    "Source",
    "SourceSettings",
    "SplitDigests",
    "Splits",
    "StreamedBatches",
    "Transform",
    "augment",
    "changed",
    "check",
    "fetch",
    "fit_transform",
    "known",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_image_folder",
    "load_lfw",
    "load_omniglot",
    "load_source",
    "load_table",
    "load_turned_digits",
    "long_tailed_counts",
    "map_image_folder",
    "normalise",
    "open_image_folder",
    "open_products",
    "split",
    "split_classes",
    "without_identities",
]
