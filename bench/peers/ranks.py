"""Ranks of PyTorch's Gloo backend on this host, for the peers of bench_comm."""

import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist


def join(size, own_core=False):
    """Rank 0 starts the others as itself again. Returns this process's rank, which has one thread."""
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size))
        for other in range(1, size):
            subprocess.Popen([sys.executable, *sys.argv], env=dict(os.environ, RANK=str(other)), stdin=subprocess.DEVNULL)
    cores = sorted(os.sched_getaffinity(0))
    if own_core and rank < len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    return rank
