"""Data sets, how they are cut into parts, and the batches that feed a child."""

from lossalign.data.cifar import load_cifar10, load_cifar100
from lossalign.data.dataset import Dataset
from lossalign.data.digits import load_digits
from lossalign.data.fetch import check, fetch
from lossalign.data.folders import load_image_folder
from lossalign.data.sources import PublishedFile, Source, known
from lossalign.data.splits import Splits, long_tailed_counts, split
from lossalign.data.streams import BatchStream, Transform, augment, fit_transform, normalise
from lossalign.data.tables import load_table

__all__ = [
    "BatchStream",
    "Dataset",
    "PublishedFile",
    "Source",
    "Splits",
    "Transform",
    "augment",
    "check",
    "fetch",
    "fit_transform",
    "known",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_image_folder",
    "load_table",
    "long_tailed_counts",
    "normalise",
    "split",
]
