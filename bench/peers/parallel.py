"""Model parallel training in PyTorch (Gloo), for bench_parallel: answers each line (how many steps) with the milliseconds
of one. Each process has one thread and one processor.

  one WORK             one process, the micro-batches one after the other
  stage WORK SCHEDULE  two stages (torch.distributed.pipelining): gpipe, 1f1b, zero_bubble
  tensor RANKS         BERT-mini; on two ranks each has its part of every layer (parallelize_module)
  sharded KIND         BERT-mini with AdamW on two ranks: ddp, or fsdp (fully_shard of each layer and of the whole)
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import models
import ranks

MICRO_BATCHES = 8
PARALLEL = {"stage": 2, "tensor": 2, "sharded": 2}


def work_of(name):
    """The layers of a model, one after the other, and the batch of a step."""
    if name == "layers":
        layers = []
        for i in range(16):
            layers += [nn.Linear(512, 512)] + ([nn.ReLU()] if i < 15 else [])
        return layers, torch.randn(MICRO_BATCHES * 64, 512), torch.randint(0, 512, (MICRO_BATCHES * 64,))
    images = torch.randn(MICRO_BATCHES * 4, 1, 28, 28)  # Gloo sends no other layout of them
    return list(models.small_resnet18()), images, torch.randint(0, 10, (MICRO_BATCHES * 4,))


def begins_of(name, chunks):
    """Where each chunk begins: halves (quarters) of equal work."""
    if name == "layers":
        return [0, 16] if chunks == 2 else [0, 8, 16, 24]
    return [0, 6] if chunks == 2 else [0, 5, 6, 8]


def optimizer_of(modules):
    parameters = [p for module in modules for p in module.parameters()]
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, fused=True)


def one(name):
    layers, data, label = work_of(name)
    model = nn.Sequential(*layers)
    optimizer = optimizer_of([model])
    parts = list(zip(data.chunk(MICRO_BATCHES), label.chunk(MICRO_BATCHES)))

    def step():
        optimizer.zero_grad(set_to_none=True)
        for x, y in parts:
            (F.cross_entropy(model(x), y) / MICRO_BATCHES).backward()
        optimizer.step()

    return step


def stage(name, schedule, rank):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleZBVZeroBubble

    layers, data, label = work_of(name)
    zero_bubble = schedule == "zero_bubble"
    chunks = 4 if zero_bubble else 2
    begins = begins_of(name, chunks)
    own = ([0, 3] if rank == 0 else [1, 2]) if zero_bubble else [rank]  # a V
    modules = [nn.Sequential(*layers[begins[i] : (begins + [len(layers)])[i + 1]]) for i in own]
    stages = [PipelineStage(module, i, chunks, torch.device("cpu")) for module, i in zip(modules, own)]
    if zero_bubble:
        table = ScheduleZBVZeroBubble(stages, MICRO_BATCHES, loss_fn=F.cross_entropy)
    else:
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
        table = kind(stages[0], MICRO_BATCHES, loss_fn=F.cross_entropy)
    optimizer = optimizer_of(modules)
    has_first, has_last = 0 in own, chunks - 1 in own

    def step():
        optimizer.zero_grad(set_to_none=True)
        arguments = (data,) if has_first else ()
        if has_last:
            table.step(*arguments, target=label, losses=[])
        else:
            table.step(*arguments)
        optimizer.step()

    return step


def tensor(count):
    model = models.BertMini()
    tokens = torch.randint(0, 30522, (8, 128))
    if count > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (count,))
        for layer in model.layers:
            layer.heads //= count
            plan = {name: ColwiseParallel() for name in ("query", "key", "value", "wide")}
            parallelize_module(layer, mesh, dict(plan, mix=RowwiseParallel(), narrow=RowwiseParallel()))
        model.table = nn.Parameter(distribute_tensor(model.words.weight.data, mesh, [Shard(0)]))
        model.own_bias = nn.Parameter(distribute_tensor(model.bias.data, mesh, [Shard(0)]))
        del model.words, model.bias
        model.forward = lambda words: forward_on_parts(model, words)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, foreach=False)

    def step():
        optimizer.zero_grad(set_to_none=True)
        if count > 1:
            from torch.distributed.tensor.parallel import loss_parallel

            with loss_parallel():
                F.cross_entropy(model(tokens), tokens.flatten()).backward()
        else:
            F.cross_entropy(model(tokens), tokens.flatten()).backward()
        optimizer.step()

    return step


def sharded(kind):
    model = models.BertMini()
    tokens = torch.randint(0, 30522, (8, 128))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0001, foreach=False)

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(tokens), tokens.flatten()).backward()
        optimizer.step()

    return step


def forward_on_parts(model, tokens):
    """BertMini.forward with the table of words split by rows, and logits by classes."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = model.table.device_mesh
    whole = DTensor.from_local(tokens, mesh, [Replicate()])
    x = F.embedding(whole, model.table).redistribute(mesh, [Replicate()]).to_local()
    x = x + model.types.weight[0] + model.positions.weight[: tokens.shape[1]]
    x = model.layers(F.dropout(model.norm(x), model.dropout))
    x = model.head_norm(F.gelu(model.transform(x))).flatten(0, 1)
    x = DTensor.from_local(x, mesh, [Replicate()])
    return F.linear(x, model.table, model.own_bias)


def main():
    kind, *words = sys.argv[1:]
    count = int(words[0]) if kind == "tensor" else PARALLEL.get(kind, 1)
    rank = ranks.join(count, own_core=True)
    torch.manual_seed(1)
    if kind == "one":
        step = one(words[0])
    elif kind == "stage":
        step = stage(words[0], words[1], rank)
    elif kind == "sharded":
        step = sharded(words[0])
    else:
        step = tensor(count)
    ranks.answer(rank, step)


main()
