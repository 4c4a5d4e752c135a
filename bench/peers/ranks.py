"""Ranks of PyTorch's Gloo backend on this host, for the peers of bench_comm."""

import os
import socket
import subprocess
import sys
import time

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


def answer(rank, step):
    """After a few steps, answers each line (how many steps) with the milliseconds of one, until there is none."""
    for _ in range(3):
        step()
    while True:
        turn = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            line = sys.stdin.readline()
            if line:
                turn[0] = int(line)
        dist.broadcast(turn, 0)
        times = int(turn[0])
        if times == 0:
            return
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(times):
            step()
        dist.barrier()
        if rank == 0:
            print(1e3 * (time.perf_counter() - begin) / times, flush=True)
