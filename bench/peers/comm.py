"""All-reduce of PyTorch's Gloo backend between SIZE processes, for bench_comm: answers each line ("bytes times") with
the median microseconds."""

import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist


def main():
    size = int(sys.argv[1])
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size))
        for other in range(1, size):
            subprocess.Popen([sys.executable, *sys.argv], env=dict(os.environ, RANK=str(other)), stdin=subprocess.DEVNULL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    while True:
        turn = torch.zeros(2, dtype=torch.int64)
        if rank == 0:
            line = sys.stdin.readline()
            if line:
                turn = torch.tensor([int(word) for word in line.split()])
        dist.broadcast(turn, 0)
        count, times = int(turn[0]) // 4, int(turn[1])
        if count == 0:
            return
        values = torch.zeros(count)
        taken = []
        for _ in range(times):
            begin = time.perf_counter()
            dist.all_reduce(values)
            taken.append(time.perf_counter() - begin)
        if rank == 0:
            print(statistics.median(taken) * 1e6, flush=True)


main()
