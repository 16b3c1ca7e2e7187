"""The cost of Recall@1, 10 and 100, compared with the whole matrix of distances and with faiss.

    python benchmarks/retrieval.py [cpu | cuda] [SAMPLES]

128-dimensional unit embeddings, five samples a class; by default 60,000 on a GPU, as many as Stanford Online Products
has for testing, and 6,000 on a CPU. Ours counts, a chunk of queries at a time; ``cdist + topk`` holds all distances and
sorts out the 100 nearest; ``faiss`` is its exact index ``IndexFlatL2``, always on the CPU (beside a GPU on all cores,
otherwise on one, like the others), left out where it is not installed.
Memory is the most that the GPU's allocator held beyond the embeddings; on the CPU, what a process of its own grew by.

Prints a table, and as its last line JSON with the ratios, hardware and versions.
"""

import multiprocessing
import os
import resource
import sys
from functools import partial

import torch
from common import last_line, seconds, table

from lossalign.core import generator
from lossalign.metrics import recall_at_k

try:
    import faiss
except ImportError:
    faiss = None

KS = (1, 10, 100)


def unit_embeddings(samples, device):
    """Clusters that overlap, so that Recall@1 is neither 0 nor 1."""
    draw = generator(0, "retrieval")
    labels = torch.arange(samples) // 5
    centres = torch.randn(len(labels.unique()), 128, generator=draw)
    embeddings = centres[labels] + 1.4 * torch.randn(samples, 128, generator=draw)
    return torch.nn.functional.normalize(embeddings, dim=-1).to(device), labels.to(device)


def recalls(found, labels):
    """Recall from the labels of the nearest, nearest first [V, max k]."""
    right = found == labels[:, None]
    return torch.stack([right[:, :k].any(1).float().mean() for k in KS])


def ours(embeddings, labels):
    return recall_at_k(embeddings, labels, KS)


def whole_matrix(embeddings, labels):
    distances = torch.cdist(embeddings, embeddings).fill_diagonal_(torch.inf)
    return recalls(labels[distances.topk(max(KS), largest=False).indices], labels)


def with_faiss(embeddings, labels):
    """Each query's own entry is left out by its index."""
    points = embeddings.cpu().numpy()
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points)
    found = torch.from_numpy(index.search(points, max(KS) + 1)[1]).to(labels.device)
    own = found == torch.arange(len(found), device=found.device)[:, None]
    own[~own.any(1), -1] = True
    return recalls(labels[found[~own].view(len(found), -1)], labels)


WORKS = {"ours": ours, "cdist + topk": whole_matrix, "faiss": with_faiss}


def resident():
    """The most memory that this process held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def grown(name, samples):
    """What this process grows by when it does the work; a small run first loads the libraries."""
    torch.set_num_threads(1)
    WORKS[name](*unit_embeddings(500, "cpu"))
    embeddings, labels = unit_embeddings(samples, "cpu")
    before = resident()
    WORKS[name](embeddings, labels)
    return resident() - before


def megabytes(name, samples, device):
    if device == "cpu":
        with multiprocessing.get_context("spawn").Pool(1) as one:
            return one.apply(grown, (name, samples))
    embeddings, labels = unit_embeddings(samples, device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    WORKS[name](embeddings, labels)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main():
    device = next((name for name in sys.argv[1:] if name in ("cpu", "cuda")), None)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    samples = next((int(name) for name in sys.argv[1:] if name.isdigit()), 60_000 if device == "cuda" else 6_000)
    torch.set_num_threads(1)
    names = [name for name in WORKS if name != "faiss" or faiss]
    if not faiss:
        print("faiss is not installed; left out.")
    else:
        faiss.omp_set_num_threads(1 if device == "cpu" else os.cpu_count())
    # Before this process grows: on Linux a new one begins with its parent's peak.
    memory = {name: megabytes(name, samples, device) for name in names}
    embeddings, labels = unit_embeddings(samples, device)
    times = seconds({name: partial(WORKS[name], embeddings, labels) for name in names}, device, rounds=3)
    scores = {name: [round(r, 5) for r in WORKS[name](embeddings, labels).tolist()] for name in names}
    rows = [(n, f"{times[n]:.3f} s", f"{memory[n]:.0f} MB", *(f"{r:.3%}" for r in scores[n])) for n in names]
    heads = ("", "time", "memory", *(f"recall@{k}" for k in KS))
    table(f"{samples:,} x 128, every sample a query", [heads, *rows])
    others = [name for name in names if name != "ours"]
    last_line(
        device,
        samples=samples,
        seconds={name: round(times[name], 4) for name in names},
        megabytes={name: round(memory[name], 1) for name in names},
        time_over_ours={name: round(times[name] / times["ours"], 2) for name in others},
        memory_over_ours={name: round(memory[name] / max(memory["ours"], 1), 2) for name in others},
        recall=scores,
        faiss=faiss.__version__ if faiss else None,
    )


if __name__ == "__main__":
    main()
