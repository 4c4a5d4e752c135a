"""The models of the benchmarks, in PyTorch."""
import torch
import torch.nn.functional as F
from torch import nn


class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 20, 5)
        self.fc = nn.Linear(320, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def downsample(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    growth = 1

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample(inputs, width, stride)

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + skip)


class Bottleneck(nn.Module):
    growth = 4

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample(inputs, 4 * width, stride)

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return self.relu(self.bn3(self.conv3(y)) + skip)


def residual_layers(block, counts):
    layers, inputs = [], 64
    for width, count, stride in zip((64, 128, 256, 512), counts, (1, 2, 2, 2)):
        for i in range(count):
            layers.append(block(inputs, width, stride if i == 0 else 1))
            inputs = width * block.growth
    return layers


def small_resnet18():
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        *residual_layers(Block, (2, 2, 2, 2)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def resnet50():
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        *residual_layers(Bottleneck, (3, 4, 6, 3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class BertLayer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x):  # [N, T, width]
        q, k, v = (f(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout).transpose(1, 2).flatten(2)
        x = self.norm1(F.dropout(self.mix(seen), self.dropout) + x)
        return self.norm2(F.dropout(self.narrow(F.gelu(self.wide(x))), self.dropout) + x)


class BertMini(nn.Module):
    """Tokens [N, T] to logits [N T, vocabulary]; the decoder's weight is the table of words."""

    def __init__(self, vocabulary=30522, width=256, layers=4, heads=4, dropout=0.1):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width, padding_idx=0), nn.Embedding(512, width)
        self.types, self.norm, self.dropout = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12), dropout
        self.layers = nn.Sequential(*(BertLayer(width, heads, dropout) for _ in range(layers)))
        self.transform, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens) + self.types.weight[0] + self.positions.weight[: tokens.shape[1]]
        x = self.layers(F.dropout(self.norm(x), self.dropout))
        x = self.head_norm(F.gelu(self.transform(x)))
        return F.linear(x.flatten(0, 1), self.words.weight, self.bias)


class Gpt2Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):  # [N, T, width]
        q, k, v = (f.unflatten(2, (self.heads, -1)).transpose(1, 2) for f in self.qkv(self.norm1(x)).chunk(3, 2))
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        x = x + F.dropout(self.mix(seen.transpose(1, 2).flatten(2)), self.dropout)
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh")), self.dropout)


class Gpt2(nn.Module):
    """Tokens [N, T] to logits [N T, vocabulary]; the head's weight is the table of tokens."""

    def __init__(self, vocabulary=50257, width=384, layers=6, heads=6, context=256, dropout=0.1):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Gpt2Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.dropout = nn.LayerNorm(width), dropout
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = F.dropout(self.tokens(tokens) + self.places.weight[: tokens.shape[1]], self.dropout)
        return F.linear(self.norm(self.blocks(x)).flatten(0, 1), self.tokens.weight)


class LstmClassifier(nn.Module):
    def __init__(self, vocabulary=10000, width=256, classes=5):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.fc = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.fc(self.lstm(self.embedding(tokens))[0][:, -1])
