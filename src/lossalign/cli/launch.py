"""The process group that ``torchrun`` asks for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from lossalign.core import InputError, RankError, Ranks

JOINING = timedelta(seconds=50)
"""How long a rank waits for the others to join; afterwards ``rank_timeout`` holds."""


def launched() -> bool:
    """Whether torchrun started several processes, of which this is one."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() and os.environ["WORLD_SIZE"] != "1"


def is_first() -> bool:
    """Whether this process is the one that writes files and prints."""
    return not launched() or os.environ["RANK"] == "0"


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that torchrun started; without torchrun this process alone."""
    if not launched():
        yield Ranks()
        return
    own, rank, count = _meet()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=JOINING)
    ranks = Ranks.current()
    yield ranks
    ranks.exchange(lambda: None)  # no rank exits while another still reads from it


def _meet() -> tuple[PrefixStore, int, int]:
    """The store in which all ranks have met, this rank, and their number."""
    where = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
    try:
        store, rank, count = next(rendezvous("env://", timeout=JOINING))
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"rank {os.environ['RANK']} cannot meet the others at {where}; start all ranks at once, check that the "
            f"port is free there and that this machine reaches it ({str(error).splitlines()[0][:120]} …)."
        ) from error
    # torchrun keeps its store over restarts, with the addresses of processes that have exited.
    own = PrefixStore(f"lossalign/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    own.set(f"joined/{rank}", "")
    try:
        own.wait([f"joined/{other}" for other in range(count)], JOINING)
    except RuntimeError as error:
        missing = [str(other) for other in range(count) if not own.check([f"joined/{other}"])]
        raise RankError(
            f"{len(missing)} of {count} ranks have not come to {where} within {JOINING.seconds} seconds "
            f"({', '.join(missing)}); start all of them at once, or fewer."
        ) from error
    return own, rank, count


def take_gpu(device: str) -> None:
    """Give each process of a machine a GPU of its own, if the run trains on GPUs."""
    if not launched() or device == "cpu" or not torch.cuda.is_available():
        return
    local, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= found:
        raise InputError(f"process {local + 1} of this machine finds {found} GPU(s); use --nproc-per-node {found}.")
    torch.cuda.set_device(local)


def leave(code: int) -> NoReturn:
    """Exit; immediately if a process group is open, as its threads may wait for ranks that have exited, or abort."""
    if dist.is_available() and dist.is_initialized():
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)
    sys.exit(code)
