"""Data sets, how they are cut into parts, and the batches that feed a child."""

from lossalign.data.cifar import load_cifar10, load_cifar100
from lossalign.data.dataset import Dataset, Examples
from lossalign.data.digits import load_digits
from lossalign.data.fetch import check, fetch
from lossalign.data.folders import load_image_folder
from lossalign.data.sources import PublishedFile, Source, known
from lossalign.data.splits import Splits, long_tailed_counts, split
from lossalign.data.streaming import MappedImages, StreamedBatches, map_image_folder, open_image_folder
from lossalign.data.streams import BatchStream, JointStream
from lossalign.data.tables import load_table
from lossalign.data.transforms import Transform, augment, fit_transform, normalise

__all__ = [
    "BatchStream",
    "Dataset",
    "Examples",
    "JointStream",
    "MappedImages",
    "PublishedFile",
    "Source",
    "Splits",
    "StreamedBatches",
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
    "map_image_folder",
    "normalise",
    "open_image_folder",
    "split",
]
