#!/usr/bin/env python3
"""Writes the reference values of this folder: what PyTorch computes for the models, optimizers and schedules of Bonfire.

    python3 -m venv VENV && VENV/bin/pip install torch torchvision transformers numpy
    VENV/bin/python tests/golden/generate.py [NAME ...]      # all files, or those named: generator mlp optimizers ...

Weights and batches are pure functions of (seed, name, index), so only results are stored. README.md defines all of it.
"""
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import nn

FOLDER = Path(__file__).resolve().parent
SEED = 20260649  # of 299 tried, the one whose small ResNet-18 has no ReLU input near zero at 7x7 and below (README.md)
DISTURBED_RUNS = 3


# ---- The generator: Philox 4x32-10, as in src/bonfire/base/random.h ----


def fnv1a64(text):
    """The 64-bit FNV-1a hash of a name: the number of its stream."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def philox(seed, stream, counters):
    """Blocks `counters` [n] (uint64) of the stream: four 32-bit words each, [n, 4] as uint64."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    c0, c1 = counters & low, counters >> shift
    c2 = np.full_like(counters, stream & 0xFFFFFFFF)
    c3 = np.full_like(counters, stream >> 32)
    for _ in range(10):
        product0 = np.uint64(0xD2511F53) * c0
        product1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (product1 >> shift) ^ c1 ^ np.uint64(key0),
            product1 & low,
            (product0 >> shift) ^ c3 ^ np.uint64(key1),
            product0 & low,
        )
        key0 = (key0 + 0x9E3779B9) & 0xFFFFFFFF
        key1 = (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1)


def uniform(stream_name, count, first=0):
    """Elements first .. first + count - 1 of the stream: float32 multiples of 2^-24 in [0, 1)."""
    stream = fnv1a64(stream_name)
    values = np.empty(count, np.float32)
    piece = 1 << 20  # values at a time, so that the blocks of a large matrix stay in the cache
    for begin in range(0, count, piece):
        end = min(begin + piece, count)
        block0, block1 = (first + begin) // 4, (first + end - 1) // 4
        words = philox(SEED, stream, np.arange(block0, block1 + 1, dtype=np.uint64)).reshape(-1)
        skip = first + begin - 4 * block0
        bits = words[skip : skip + end - begin] >> np.uint64(8)
        values[begin:end] = bits.astype(np.float32) * np.float32(2.0**-24)
    return values


def signed(stream_name, count, first=0):
    """2u - 1, exact in float32: in [-1, 1)."""
    return np.float32(2) * uniform(stream_name, count, first) - np.float32(1)


def whole(stream_name, count, below):
    """floor(u * below), exact in double: integers in [0, below)."""
    return np.floor(uniform(stream_name, count).astype(np.float64) * below).astype(np.int64)


def parameter_values(name, shape, kind):
    count = math.prod(shape)
    if kind == "weight":  # one float32 rounding: that of the product
        return (signed(name, count) * np.float32(math.sqrt(3.0 / (count // shape[0])))).reshape(shape)
    small = np.float32(0.125) * signed(name, count)  # exact
    return (np.float32(1) + small if kind == "norm_weight" else small).reshape(shape)


def image_values(step, shape):
    return signed(f"image:{step}", math.prod(shape)).reshape(shape)


def label_values(step, shape, classes):
    return whole(f"label:{step}", math.prod(shape), classes).reshape(shape)


def token_values(step, shape, vocabulary):
    return 1 + whole(f"token:{step}", math.prod(shape), vocabulary - 1).reshape(shape)


def box_values(step, shape):
    return uniform(f"box:{step}", math.prod(shape)).reshape(shape)


def gradient_values(name, step, shape):
    return signed(f"grad:{name}:{step}", math.prod(shape)).reshape(shape)


# ---- The models ----


class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 20, 5)
        self.fc = nn.Linear(320, 10)

    def forward(self, x):  # [N, 1, 28, 28]
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # [N, 20, 12, 12]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # [N, 20, 4, 4]
        return self.fc(x.flatten(1))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):  # [N, 1, 28, 28]
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)  # [N, 6, 14, 14]
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)  # [N, 16, 5, 5]
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class TanhNet(nn.Module):
    """Smooth everywhere, so that rounding does not grow over 50 steps as it does through ReLU and max-pool."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x):  # [N, 1, 28, 28]
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)  # [N, 8, 14, 14]
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)  # [N, 16, 7, 7]
        return self.fc(x.flatten(1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, 10)

    def forward(self, x):  # [N, 1, 28, 28]
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


def resnet18_small():
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(1, 64, 3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


class TwoHeaded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32)
        self.conv3, self.bn3 = nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64)
        self.box = nn.Linear(64, 4)
        self.cls = nn.Linear(64, 10)

    def forward(self, x):  # [N, 3, 64, 64]
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x))).mean((2, 3))  # [N, 64]
        return self.cls(x), self.box(x)


class LstmClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 64, num_layers=2, batch_first=True)
        self.fc = nn.Linear(64, 5)

    def forward(self, tokens):  # [N, 20]
        states, _ = self.lstm(self.embedding(tokens))  # [N, 20, 64]
        return self.fc(states[:, -1])


class BertMini(transformers.BertForMaskedLM):
    def __init__(self):
        super().__init__(
            transformers.BertConfig(
                vocab_size=1000,
                hidden_size=256,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=1024,
                max_position_embeddings=512,
                type_vocab_size=2,
                hidden_act="gelu",
                layer_norm_eps=1e-12,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                attn_implementation="eager",
            )
        )

    def forward(self, tokens):  # [N, 32], no padding, token type 0 throughout
        return super().forward(input_ids=tokens).logits.flatten(0, 1)  # [N * 32, 1000]


GPT2_SIZES = {"layers": 2, "heads": 4, "width": 64, "context": 40}


class Gpt2(transformers.GPT2LMHeadModel):
    def __init__(self):
        super().__init__(
            transformers.GPT2Config(
                vocab_size=300,  # no multiple of 64
                n_positions=GPT2_SIZES["context"],
                n_embd=GPT2_SIZES["width"],
                n_layer=GPT2_SIZES["layers"],
                n_head=GPT2_SIZES["heads"],
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                attn_implementation="eager",
            )
        )

    def forward(self, tokens):  # [N, 32]
        return super().forward(input_ids=tokens, use_cache=False).logits.flatten(0, 1)  # [N * 32, 300]


class Case:
    """A model and how its batches are made. `inputs` is the shape of one sample."""

    batch = 8

    def __init__(self, model, inputs, classes, vocabulary=None, label_shape=(), boxes=False, **training):
        self.make_model, self.inputs, self.classes = model, inputs, classes
        self.vocabulary, self.label_shape, self.boxes = vocabulary, label_shape, boxes
        self.batch = training.get("batch", 8)
        self.lr, self.momentum = training.get("lr", 0.001), training.get("momentum", 0.9)
        self.steps = training.get("steps", 5)
        self.weight_decay = training.get("weight_decay")  # of matrices, by AdamW in place of SGD
        self.sizes = training.get("sizes")  # of a model that has them by options

    def optimizer(self, model, lr=None):
        lr = self.lr if lr is None else lr
        if self.weight_decay is None:
            return torch.optim.SGD(model.parameters(), lr, self.momentum, foreach=False)
        matrices = {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": self.weight_decay}
        vectors = {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}
        return torch.optim.AdamW([matrices, vectors], lr, foreach=False)

    def optimizer_description(self):
        if self.weight_decay is None:
            return {"name": "momentum", "lr": self.lr, "momentum": self.momentum}
        return {"name": "adamw", "lr": self.lr, "weight_decay_of_matrices": self.weight_decay}

    def feed(self, step, dtype):
        shape = (self.batch, *self.inputs)
        if self.vocabulary:
            return torch.from_numpy(token_values(step, shape, self.vocabulary))
        return torch.from_numpy(image_values(step, shape)).to(dtype)

    def outputs_and_loss(self, model, step, dtype):
        outputs = model(self.feed(step, dtype))
        labels = torch.from_numpy(label_values(step, (self.batch, *self.label_shape), self.classes)).flatten()
        if not self.boxes:
            return {"logits": outputs}, F.cross_entropy(outputs, labels)
        cls, box = outputs
        target = torch.from_numpy(box_values(step, (self.batch, 4))).to(dtype)
        return {"cls": cls, "box": box}, F.cross_entropy(cls, labels) + F.smooth_l1_loss(box.to(dtype), target)


CASES = {
    "mnist_cnn": Case(MnistCnn, (1, 28, 28), 10),
    "lenet": Case(LeNet, (1, 28, 28), 10, lr=0.01),
    "tanh_net": Case(TanhNet, (1, 28, 28), 10, batch=16, lr=0.05, steps=50),
    "mlp": Case(Mlp, (1, 28, 28), 10, lr=0.01),
    "resnet18_small": Case(resnet18_small, (1, 28, 28), 10),
    "vgg11_bn": Case(lambda: torchvision.models.vgg11_bn(num_classes=10, dropout=0.0), (3, 32, 32), 10),
    "alexnet": Case(lambda: torchvision.models.alexnet(num_classes=10, dropout=0.0), (3, 64, 64), 10),
    "two_headed": Case(TwoHeaded, (3, 64, 64), 10, boxes=True),
    "lstm_classifier": Case(LstmClassifier, (20,), 5, vocabulary=1000, lr=0.1),
    "bert_mini": Case(BertMini, (32,), 1000, vocabulary=1000, label_shape=(32,)),
    "gpt2": Case(
        Gpt2, (32,), 300, vocabulary=300, label_shape=(32,), batch=4, steps=50, weight_decay=0.1, sizes=GPT2_SIZES
    ),
}


def kind_of(model, name):
    owner, _, leaf = name.rpartition(".")
    if isinstance(model.get_submodule(owner), (nn.BatchNorm2d, nn.LayerNorm)):
        return "norm_weight" if leaf == "weight" else "bias"
    return "bias" if "bias" in leaf else "weight"


def norm(tensor):
    return float(tensor.detach().double().norm())


def train(case, values, dtype=torch.float32, autocast=False, lr=None):
    """Trains for case.steps steps from the generator's weights: a dict of everything worth comparing."""
    model = case.make_model().to(dtype).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(values[name]))
    optimizer = case.optimizer(model, lr)
    result = {"losses": []}
    for step in range(case.steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs, loss = case.outputs_and_loss(model, step, dtype)
        optimizer.zero_grad()
        loss.backward()
        result["losses"].append(loss.item())
        if step == 0:
            result["output_norms"] = {name: norm(output) for name, output in outputs.items()}
            result["output_heads"] = {name: output.flatten()[:10].tolist() for name, output in outputs.items()}
            result["gradient_norms"] = {name: norm(p.grad) for name, p in model.named_parameters()}
        optimizer.step()
    result["buffer_norms"] = {
        name: norm(buffer) for name, buffer in model.named_buffers() if name.endswith(("running_mean", "running_var"))
    }
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result["eval_loss"] = case.outputs_and_loss(model.eval(), case.steps, dtype)[1].item()
    return result


def disturbed(values, run):
    """The weights, each moved by up to two units in its last place: rounding as another implementation might do it."""
    return {
        name: (v * (1 + 2.0**-22 * signed(f"disturb:{run}:{name}", v.size).astype(np.float64).reshape(v.shape))).astype(
            np.float32
        )
        for name, v in values.items()
    }


def relative(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def worst_gradient(spread, norms):
    """The largest part of the tolerance 1e-4 * |g| + 1e-6 * (largest |g|) that rounding alone uses up."""
    largest = max(norms.values())
    return max(spread[n] / (1e-4 * norms[n] + 1e-6 * largest) for n in norms)


def golden_model(name):
    case = CASES[name]
    model = case.make_model()
    kinds = {n: kind_of(model, n) for n, _ in model.named_parameters()}
    shapes = {n: list(p.shape) for n, p in model.named_parameters()}
    values = {n: parameter_values(n, shapes[n], kinds[n]) for n in kinds}
    del model
    f32 = train(case, values)
    f64 = train(case, values, torch.float64)
    bf16 = train(case, values, autocast=True)
    frozen = train(case, values, lr=0.0)
    single = [f32] + [train(case, disturbed(values, run)) for run in range(DISTURBED_RUNS)]
    loss_spread = [max(abs(run["losses"][t] / f64["losses"][t] - 1) for run in single) for t in range(case.steps)]
    gradient_spread = {n: max(abs(run["gradient_norms"][n] - f64["gradient_norms"][n]) for run in single) for n in kinds}
    print(
        f"{name}: losses {f32['losses'][0]:.6f} .. {f32['losses'][-1]:.6f}, f32 - f64: first loss "
        f"{relative(f32['losses'][:1], f64['losses'][:1]):.1e}, all {relative(f32['losses'], f64['losses']):.1e}, "
        f"bf16 - f64 {relative(bf16['losses'], f64['losses']):.1e}, "
        f"training moves the last loss by {relative(f32['losses'][-1:], frozen['losses'][-1:]):.1e}; disturbed: losses "
        f"{max(loss_spread):.1e}, gradients {worst_gradient(gradient_spread, f64['gradient_norms']):.2f} of the tolerance"
    )
    return {
        "model": name,
        "torch": torch.__version__.split("+")[0],
        "seed": SEED,
        "batch": case.batch,
        "input_shape": [case.batch, *case.inputs],
        "input": "token" if case.vocabulary else "image",
        "vocabulary": case.vocabulary or 0,
        "label_shape": [case.batch, *case.label_shape],
        "classes": case.classes,
        "optimizer": case.optimizer_description(),
        "steps": case.steps,
        **({"sizes": case.sizes} if case.sizes else {}),
        "parameter_count": sum(v.size for v in values.values()),
        "parameters": [
            {
                "name": n,
                "shape": shapes[n],
                "kind": kinds[n],
                "gradient_norm": f32["gradient_norms"][n],
                "gradient_norm_f64": f64["gradient_norms"][n],
                "gradient_spread": gradient_spread[n],
            }
            for n in kinds
        ],
        "outputs": [
            {
                "name": n,
                "norm": f32["output_norms"][n],
                "norm_f64": f64["output_norms"][n],
                "head": f32["output_heads"][n],
            }
            for n in f32["output_norms"]
        ],
        "buffers": [
            {"name": n, "norm": f32["buffer_norms"][n], "norm_f64": f64["buffer_norms"][n]} for n in f32["buffer_norms"]
        ],
        "loss": f32["losses"][0],
        "loss_f64": f64["losses"][0],
        "losses": f32["losses"],
        "losses_f64": f64["losses"],
        "losses_bf16": bf16["losses"],
        "losses_without_updates": frozen["losses"],
        "loss_spread": loss_spread,
        "eval_loss": f32["eval_loss"],
        "eval_loss_f64": f64["eval_loss"],
    }


# ---- Optimizers: two parameters, 50 steps of gradients from the generator ----

OPTIMIZER_PARAMETERS = {"matrix": ((3, 4), "weight"), "vector": ((5,), "bias")}
OPTIMIZER_STEPS, KEPT_STEPS = 50, (1, 2, 10, 50)
# Steps in which a parameter has no gradient: one begins late and pauses now and then, the other pauses once.
OPTIMIZER_GAPS = {"matrix": [4], "vector": [0, 1, 2, 3, 4, 5, 6, 9, 20, 21, 35]}
LR_DROP_STEP, LR_DROP_FACTOR = 25, 0.1  # steps 25 .. 49 run at a tenth of the rate


class Lars:
    """local = trust * |w| / (|g| + wd * |w| + eps), or 1 where |w| or |g| is 0;
    buffer = momentum * buffer + local * (g + wd * w);  w -= lr * buffer."""

    def __init__(self, lr, momentum, weight_decay, trust_coefficient, eps):
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.trust, self.eps = trust_coefficient, eps
        self.buffer = {}

    def update(self, name, w, g):
        w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
        local = 1.0
        if w_norm > 0 and g_norm > 0:
            local = self.trust * w_norm / (g_norm + self.weight_decay * w_norm + self.eps)
        buffer = self.momentum * self.buffer.get(name, 0.0) + local * (g + self.weight_decay * w)
        self.buffer[name] = buffer
        return w - self.lr * buffer


class Lamb:
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  t counts from 1;
    u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd * w;
    ratio = |w| / |u|, or 1 where either is 0;  w -= lr * ratio * u."""

    def __init__(self, lr, betas, eps, weight_decay):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.state = {}

    def update(self, name, w, g):
        b1, b2 = self.betas
        m, v, t = self.state.get(name, (0.0, 0.0, 0))
        m, v, t = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g, t + 1
        self.state[name] = m, v, t
        u = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + self.eps) + self.weight_decay * w
        w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
        ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0
        return w - self.lr * ratio * u


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_weight_decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "momentum_weight_decay": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-10}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8}),
    "adam_weight_decay": (torch.optim.Adam, {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}),
    "lars": (Lars, {"lr": 10.0, "momentum": 0.9, "weight_decay": 0.01, "trust_coefficient": 0.001, "eps": 1e-8}),
    "lamb": (Lamb, {"lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01}),
}


def initial_optimizer_values():
    return {n: parameter_values(n, shape, kind) for n, (shape, kind) in OPTIMIZER_PARAMETERS.items()}


def has_gradient(name, step, gaps):
    return not gaps or step not in OPTIMIZER_GAPS.get(name, ())


def run_torch_optimizer(make, options, dtype, gaps=False):
    """The parameters after each step: a list of {name: values}."""
    parameters = {n: nn.Parameter(torch.from_numpy(v).to(dtype)) for n, v in initial_optimizer_values().items()}
    optimizer = make(parameters.values(), **options, foreach=False)
    history = []
    for step in range(OPTIMIZER_STEPS):
        if step == LR_DROP_STEP:
            optimizer.param_groups[0]["lr"] *= LR_DROP_FACTOR
        for name, parameter in parameters.items():
            gradient = torch.from_numpy(gradient_values(name, step, parameter.shape)).to(dtype)
            parameter.grad = gradient if has_gradient(name, step, gaps) else None
        optimizer.step()
        history.append({n: p.detach().double().flatten().tolist() for n, p in parameters.items()})
    return history


def run_written_out_optimizer(make, options, gaps=False):
    values = {n: v.astype(np.float64) for n, v in initial_optimizer_values().items()}
    optimizer = make(**options)
    history = []
    for step in range(OPTIMIZER_STEPS):
        if step == LR_DROP_STEP:
            optimizer.lr *= LR_DROP_FACTOR
        for name in values:
            gradient = gradient_values(name, step, values[name].shape).astype(np.float64)
            if has_gradient(name, step, gaps):
                values[name] = optimizer.update(name, values[name], gradient)
        history.append({n: v.flatten().tolist() for n, v in values.items()})
    return history


def golden_optimizers():
    cases = []
    for name, (make, options) in OPTIMIZERS.items():
        case = {"name": name, "options": options}
        if make in (Lars, Lamb):
            reference = run_written_out_optimizer(make, options)
            with_gaps = run_written_out_optimizer(make, options, gaps=True)
        else:
            reference = run_torch_optimizer(make, options, torch.float64)
            with_gaps = run_torch_optimizer(make, options, torch.float64, gaps=True)
            f32 = run_torch_optimizer(make, options, torch.float32)
            case["values_f32"] = {str(k): f32[k - 1] for k in KEPT_STEPS}
        case["values"] = {str(k): reference[k - 1] for k in KEPT_STEPS}
        case["values_with_gaps"] = {str(k): with_gaps[k - 1] for k in KEPT_STEPS}
        cases.append(case)
    return {
        "torch": torch.__version__.split("+")[0],
        "seed": SEED,
        "parameters": [{"name": n, "shape": s, "kind": k} for n, (s, k) in OPTIMIZER_PARAMETERS.items()],
        "steps": OPTIMIZER_STEPS,
        "lr_drop_step": LR_DROP_STEP,
        "lr_drop_factor": LR_DROP_FACTOR,
        "gaps": OPTIMIZER_GAPS,
        "cases": cases,
    }


# ---- Schedules: the rate of step t, counted from 0 ----

SCHEDULE_STEPS, BASE_LR, WARMUP_STEPS, WARMUP_START_LR = 50, 0.1, 5, 0.01
SCHEDULES = {
    "constant": {},
    "multi_step": {"milestones": [15, 30, 40], "gamma": 0.1},
    "cosine": {"total_steps": 45, "min_lr": 0.001},
    "polynomial": {"total_steps": 45, "power": 2.0},
}


def rate(schedule, t):
    options = SCHEDULES[schedule]
    if schedule == "multi_step":
        return BASE_LR * options["gamma"] ** sum(t >= m for m in options["milestones"])
    if schedule == "constant":
        return BASE_LR
    progress = min(t, options["total_steps"]) / options["total_steps"]
    if schedule == "polynomial":
        return BASE_LR * (1 - progress) ** options["power"]
    return options["min_lr"] + (BASE_LR - options["min_lr"]) * (1 + math.cos(math.pi * progress)) / 2


def rate_after_warmup(schedule, t):
    if t < WARMUP_STEPS:
        return WARMUP_START_LR + (BASE_LR - WARMUP_START_LR) * t / WARMUP_STEPS
    return rate(schedule, t - WARMUP_STEPS)


def torch_rates(schedule, warmup):
    """PyTorch's own answer, from its schedulers stepped one by one."""
    rates = torch.optim.lr_scheduler
    options = SCHEDULES[schedule]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], BASE_LR)
    front = [rates.LinearLR(optimizer, WARMUP_START_LR / BASE_LR, total_iters=WARMUP_STEPS)] if warmup else []
    if schedule == "constant":
        main = rates.ConstantLR(optimizer, factor=1.0)
    elif schedule == "multi_step":
        main = rates.MultiStepLR(optimizer, options["milestones"], options["gamma"])
    elif schedule == "cosine":
        main = rates.CosineAnnealingLR(optimizer, options["total_steps"], options["min_lr"])
    else:
        main = rates.PolynomialLR(optimizer, options["total_steps"], options["power"])
    scheduler = rates.SequentialLR(optimizer, [*front, main], [WARMUP_STEPS]) if warmup else main
    answer = []
    for _ in range(SCHEDULE_STEPS):
        answer.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return answer


def golden_schedules():
    cases = []
    for name, options in SCHEDULES.items():
        for warmup in (False, True):
            written = [(rate_after_warmup if warmup else rate)(name, t) for t in range(SCHEDULE_STEPS)]
            compared = SCHEDULE_STEPS
            if name == "cosine" and not warmup:
                compared = options["total_steps"] + 1  # past its end PyTorch's cosine rises again; ours stays down
            difference = np.abs(np.array(written) - torch_rates(name, warmup))[:compared].max()
            if difference > 1e-12:
                raise SystemExit(f"schedule {name}, warm-up {warmup}: differs from PyTorch's by {difference}")
            warm = {"warmup_steps": WARMUP_STEPS, "warmup_start_lr": WARMUP_START_LR} if warmup else {}
            cases.append({"name": name, "lr": BASE_LR, "options": options | warm, "rates": written})
    return {"torch": torch.__version__.split("+")[0], "steps": SCHEDULE_STEPS, "cases": cases}


# ---- Values of the generator itself, so that another implementation can be checked bit for bit ----


def golden_generator():
    blocks = [(SEED, 0, 0), (SEED, 1, 7), (2**63 + 5, fnv1a64("conv1.weight"), 2**40 + 3), (2**64 - 1,) * 3]
    parameters = [("conv1.weight", (20, 1, 5, 5), "weight"), ("fc.weight", (10, 320), "weight")]
    parameters += [("bn1.weight", (7,), "norm_weight"), ("fc.bias", (10,), "bias")]
    names = ["", "a", "conv1.weight", "image:0", "bert.encoder.layer.0.attention.self.query.weight"]
    far = 102_760_441  # near the end of the largest matrix in use
    return {
        "seed": SEED,
        "fnv1a64": [{"text": n, "hash": f"{fnv1a64(n):016x}"} for n in names],
        "philox": [
            {"seed": f"{s:016x}", "stream": f"{t:016x}", "counter": f"{c:016x}", "words": philox_words(s, t, c)}
            for s, t, c in blocks
        ],
        "uniform": [
            {"stream": "conv1.weight", "first": f, "values": uniform("conv1.weight", 7, f).tolist()} for f in (0, 3, far)
        ],
        "parameters": [
            {"name": n, "shape": s, "kind": k, "values": parameter_values(n, s, k).flatten()[:12].tolist()}
            for n, s, k in parameters
        ],
        "image": {"step": 3, "values": image_values(3, (9,)).tolist()},
        "label": {"step": 3, "classes": 10, "values": label_values(3, (32,), 10).tolist()},
        "token": {"step": 3, "vocabulary": 1000, "values": token_values(3, (32,), 1000).tolist()},
        "box": {"step": 3, "values": box_values(3, (9,)).tolist()},
        "gradient": {"name": "matrix", "step": 49, "values": gradient_values("matrix", 49, (9,)).tolist()},
    }


def tree(model):
    """Its lines as PyTorch prints it. Since 2.15 it shows whether a norm has a bias; before, as here, it did not."""
    return re.sub(r"((?:Batch|Layer)Norm.*), bias=(?:True|False)", r"\1", str(model)).split("\n")


def golden_trees():
    with torch.device("meta"):  # no weights
        names = ("alexnet", "vgg16", "vgg11_bn", "resnet18", "resnet50")
        models = {name: getattr(torchvision.models, name)() for name in names}
        models["lstm_classifier"] = LstmClassifier()
        models["gpt2"] = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    return {"trees": [{"model": name, "lines": tree(model)} for name, model in models.items()]}


def philox_words(seed, stream, counter):
    return philox(seed, stream, np.array([counter], np.uint64))[0].tolist()


def write(name, content):
    """One line per entry of a list, so that a rerun gives a readable diff; numbers in the shortest exact form."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join("    " + json.dumps(row) for row in value)
            lines.append(f"  {json.dumps(key)}: [\n{rows}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    makers = {"generator": golden_generator, "optimizers": golden_optimizers, "schedules": golden_schedules}
    makers |= {"trees": golden_trees}
    makers |= {name: (lambda name=name: golden_model(name)) for name in CASES}
    for name in sys.argv[1:] or makers:
        if name not in makers:
            raise SystemExit(f"no golden file {name!r}; there are: {', '.join(makers)}")
        write(name, makers[name]())


if __name__ == "__main__":
    main()
