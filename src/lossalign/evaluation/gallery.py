"""Examples of retrieval: the nearest neighbours of a few samples, and the distances of pairs.

A run of metric learning writes them to ``retrieval.npz`` when it finishes; ``lossalign.report`` draws them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.data import Examples, Transform, normalise
from lossalign.evaluation.result import Chosen, best_child_of
from lossalign.experiments import Arm, Experiment

BINS = 60
"""Bins of the histograms of distances, from 0 to 2, the largest distance of embeddings of length 1."""
QUERIES, NEIGHBOURS = 8, 8
FAILURES = 2
"""Smallest number of queries with a nearest neighbour of another class, if there are as many."""
MOST = 2000
"""Largest number of samples that are used."""
TOGETHER = 10
"""Smallest number of samples of a class that are used, if the class has as many."""
SIDE = 96
"""Largest side of a saved image, in pixels."""
_CHUNK = 256


def nearest(embeddings: Tensor, labels: Tensor, k: int) -> Tensor:
    """The k nearest other samples of every sample, nearest first, by Euclidean distance.

    Of two at the same distance, the one of another class comes first, so that collapsed embeddings have no hits.

    Args:
        embeddings: [V, D].
        labels: [V].
        k: below V.

    Returns:
        Their indices [V, k].

    Example:
        >>> nearest(torch.tensor([[0.0], [1.0], [3.0], [2.0]]), torch.tensor([0, 0, 0, 1]), k=2)
        tensor([[1, 3],
                [3, 0],
                [3, 1],
                [1, 2]])
    """
    found = []
    for rows, distances in _distances(embeddings):
        same = labels[rows, None] == labels
        judged = torch.where(same, distances.nextafter(distances.new_tensor(math.inf)), distances)
        judged[torch.arange(len(rows)), rows] = math.inf
        found.append(judged.topk(k, largest=False).indices)
    return torch.cat(found)


def pair_histograms(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Histograms of the distances of pairs, of embeddings normalised to length 1.

    Args:
        embeddings: [V, D].
        labels: [V].

    Returns:
        Counts of positive and of negative pairs [2, BINS], in equal bins from 0 to 2; together V (V − 1) / 2.

    Example:
        >>> counts = pair_histograms(torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
        >>> counts[0, 0], counts[1, -1], counts.sum()
        (tensor(1), tensor(2), tensor(3))
    """
    counts = labels.new_zeros(2 * BINS)
    index = torch.arange(len(labels), device=labels.device)
    for rows, distances in _distances(F.normalize(embeddings.float(), dim=-1)):
        bins = (distances * (BINS / 2)).long().clamp(max=BINS - 1)
        places = bins + BINS * (labels[rows, None] != labels)
        counts += torch.bincount(places[index > rows[:, None]], minlength=2 * BINS)
    return counts.view(2, BINS)


def _distances(embeddings: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of rows [Q], and their distances to all samples [Q, V]; equal embeddings are exactly 0 apart."""
    x = embeddings.float()
    for rows in torch.arange(len(x), device=x.device).split(_CHUNK):
        yield rows, torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist")


def choose_samples(labels: Tensor, most: int = MOST) -> Tensor:
    """At most ``most`` samples, class by class.

    If there are too many, classes are left out at even intervals, and large classes are cut, but not below
    ``TOGETHER``, as a sample needs others of its class.

    Args:
        labels: [n].
        most: the largest number.

    Returns:
        Their indices, at most ``most``.

    Example:
        >>> choose_samples(torch.tensor([1, 0, 1, 0, 1]))
        tensor([1, 3, 0, 2, 4])
        >>> choose_samples(torch.arange(3).repeat(50), most=30).shape
        torch.Size([30])
    """
    sizes = torch.bincount(labels)
    classes = [part for part in labels.argsort(stable=True).split(sizes.tolist()) if len(part)]
    classes = [part[: max(TOGETHER, most // len(classes))] for part in classes]
    step = math.ceil(sum(map(len, classes)) / most)
    return torch.cat(classes[::step])[:most]


def choose_queries(labels: Tensor, wrong: Tensor, number: int = QUERIES) -> Tensor:
    """Samples to show: spread over the classes, among them ``FAILURES`` that are ``wrong`` if there are as many.

    Args:
        labels: [V].
        wrong: whether the nearest neighbour is of another class although there is one of the same [V].
        number: the largest number.

    Returns:
        Their indices in the order of their classes, at most ``number``.

    Example:
        >>> choose_queries(torch.arange(4).repeat_interleave(5), torch.arange(20) == 7, number=3)
        tensor([ 0,  7, 15])
    """
    company = torch.bincount(labels)[labels] > 1
    failing = (wrong & company).nonzero().squeeze(1).tolist()
    chosen = [failing[int(len(failing) * (part + 0.5) / FAILURES)] for part in range(FAILURES) if failing]
    chosen = list(dict.fromkeys(chosen))[:number]
    rounds: dict[int, list[int]] = {}
    taken = Counter(labels[chosen].tolist())
    for sample in (sample for sample in company.nonzero().squeeze(1).tolist() if sample not in chosen):
        rounds.setdefault(taken[int(labels[sample])], []).append(sample)
        taken[int(labels[sample])] += 1
    for _, samples in sorted(rounds.items()):
        room = min(number - len(chosen), len(samples))
        chosen += [samples[round(place)] for place in np.linspace(0, len(samples) - 1, room).tolist()]
    return torch.tensor(sorted(chosen, key=lambda sample: (int(labels[sample]), sample)), dtype=torch.int64)


def thumbnails(images: Tensor) -> npt.NDArray[np.uint8]:
    """Images for display: [n, C, H, W] to uint8 [n, h, w, 1 or 3], no side above ``SIDE``.

    Floating-point images are scaled together to the range from black to white. Channels other than one or three are
    averaged.

    Example:
        >>> thumbnails(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 2, 4, 4))[:, 0, 0].tolist()
        [[0], [255]]
    """
    pixels = images.float()
    if images.dtype is not torch.uint8:
        low, high = pixels.aminmax()
        pixels = (pixels - low) / (high - low).clamp(min=1e-12) * 255
    if pixels.shape[1] not in (1, 3):
        pixels = pixels.mean(1, keepdim=True)
    shrink = SIDE / max(pixels.shape[-2:])
    if shrink < 1:
        pixels = F.interpolate(pixels, size=[max(1, round(shrink * side)) for side in pixels.shape[-2:]], mode="area")
    shown: npt.NDArray[np.uint8] = pixels.round().byte().permute(0, 2, 3, 1).contiguous().cpu().numpy()
    return shown


def shown_children(experiment: Experiment, best: Arm) -> list[Chosen]:
    """The best child of the baseline and of the learner, or of ``best`` without a learner; called by all ranks.

    Both are of the seed of ``best``, since another seed holds out other classes.
    """
    arms = [arm for arm in experiment.arms if arm.seed == best.seed and arm.spec.plain]
    baseline = [arm for arm in arms if arm.spec.role == "baseline"][:1]
    learner = [arm for arm in arms if arm.spec.role == "learner"][:1] or [best]
    return [best_child_of(experiment, arm) for arm in {arm.method: arm for arm in (*baseline, *learner)}.values()]


def gallery(experiment: Experiment, shown: list[Chosen], *, final: bool) -> dict[str, Any]:
    """The neighbours and distances on the test split, or on the selection split, as arrays.

    ``methods`` [M], their ``children`` [M] of one ``seed``, the metric ``scores`` [M] on the number of
    ``samples`` used, out of the number ``of`` in the ``split``; histograms of the distances of positive and negative
    pairs ``before`` training (of the last child) [2, BINS] and after [M, 2, BINS], between ``edges`` [BINS + 1]. If
    inputs are images: ``images`` [U, h, w, 1 or 3] with the ``names`` of their classes [U], the indices in them of the
    ``queries`` [Q] and their ``neighbours`` [M, Q, k], and whether these are ``right`` [M, Q, k].
    """
    data = experiment.data[shown[0].arm.seed]
    split = data.test if final else data.splits.selection
    part = split.subset(choose_samples(split.targets))
    labels = part.targets.to(experiment.device)
    networks = [experiment.untrained(shown[-1].arm, shown[-1].child)]
    for one in shown:
        networks.append(experiment.untrained(one.arm, one.child))
        networks[-1].load_state_dict(one.weights)
    before, *after = (_embed(network, part, data.transform, experiment.device) for network in networks)
    arrays: dict[str, Any] = {
        "methods": np.array([one.arm.method for one in shown]),
        "children": np.array([one.child for one in shown]),
        "seed": np.array(shown[0].arm.seed),
        "scores": np.array([float(experiment.metric(each, labels)) for each in after]),
        "split": np.array("test" if final else "selection"),
        "samples": np.array(len(part)),
        "of": np.array(len(split)),
        "edges": np.linspace(0, 2, BINS + 1),
        "before": pair_histograms(before, labels).cpu().numpy(),
        "after": torch.stack([pair_histograms(each, labels) for each in after]).cpu().numpy(),
    }
    if len(part.input_shape) == 3:
        arrays |= _sheet(part, [nearest(each, labels, min(NEIGHBOURS, len(part) - 1)).cpu() for each in after])
    return arrays


def _embed(network: nn.Module, part: Examples, transform: Transform, device: torch.device) -> Tensor:
    """Embeddings [V, D] in eval mode; zeros where they are not finite."""
    network = network.to(device).eval()
    with torch.no_grad():
        parts = [
            network(normalise(part.subset(rows).load().inputs.to(device), transform)).float()
            for rows in torch.arange(len(part)).split(_CHUNK)
        ]
    return torch.cat(parts).nan_to_num(0.0, 0.0, 0.0)


def _sheet(part: Examples, neighbours: list[Tensor]) -> dict[str, Any]:
    """A few queries and their ``neighbours`` [V, k] by method; each image is kept once."""
    labels = part.targets
    found = torch.stack(neighbours)
    queries = choose_queries(labels, (labels[found[:, :, 0]] != labels).any(0))
    found = found[:, queries]
    kept, places = torch.cat([queries, found.flatten()]).unique(return_inverse=True)
    return {
        "images": thumbnails(part.subset(kept).load().inputs),
        "names": np.array([part.class_names[c] for c in labels[kept].tolist()]),
        "queries": places[: len(queries)].numpy(),
        "neighbours": places[len(queries) :].view_as(found).numpy(),
        "right": (labels[found] == labels[queries][None, :, None]).numpy(),
    }
