"""Does torchvision take our ResNet-18? Trains it for a few steps, loads the weights into torchvision's model, strictly
(num_batches_tracked too), and compares the logits of both.

    python3 bench/peers/torchvision_resnet18.py [build/release/bin/bonfire]

Needs torch, torchvision, safetensors and Pillow. Ends with 0 when the largest difference is at most 1e-5 of the
largest logit.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torchvision
from PIL import Image
from safetensors import safe_open

SIZE, CLASSES = 64, 3


def write_pictures(folder):
    generator = torch.Generator().manual_seed(1)
    for part, count in (("train", 16), ("val", 4)):
        for label in range(CLASSES):
            place = folder / part / f"kind{label}"
            place.mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(0, 256 - 60 * label, (SIZE, SIZE, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(place / f"{i}.png")


def run(program, *arguments):
    environment = dict(os.environ, BONFIRE_TUNE="off")
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True, env=environment).stdout


def our_logits(program, run_folder, pictures):
    lines = run(program, "predict", run_folder, *pictures, "--json", "--top", str(CLASSES)).splitlines()
    rows = []
    for line in lines:
        guesses = sorted(json.loads(line)["guesses"], key=lambda guess: guess["class"])
        rows.append([guess["logit"] for guess in guesses])
    return torch.tensor(rows, dtype=torch.float64)


def their_logits(weights, pictures):
    with safe_open(weights, framework="pt") as file:
        said = file.metadata()
        state = {name: file.get_tensor(name) for name in file.keys()}
    model = torchvision.models.resnet18(num_classes=CLASSES)
    model.load_state_dict(state, strict=True)
    assert int(model.bn1.num_batches_tracked) > 0, "num_batches_tracked was not counted"
    model.eval()
    mean, deviation = (torch.tensor(json.loads(said[key])).view(1, 3, 1, 1) for key in ("mean", "deviation"))
    pixels = torch.stack([torchvision.transforms.functional.pil_to_tensor(Image.open(one)) for one in pictures])
    with torch.no_grad():
        return model((pixels.float() / 255 - mean) / deviation).double()


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin/bonfire"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_pictures(folder / "data")
        run(program, "train", "model=resnet18", f"data={folder}/data", f"output={folder}/runs", f"image_size={SIZE}",
            "center_crop=1", "batch_size=8", "epochs=1", "place=cpu")
        pictures = sorted(str(path) for path in (folder / "data/val").rglob("*.png"))
        ours = our_logits(program, f"{folder}/runs/1", pictures)
        theirs = their_logits(f"{folder}/runs/1/best.safetensors", pictures)
    difference = (ours - theirs).abs().max().item() / theirs.abs().max().item()
    print(f"torchvision {torchvision.__version__} loads it strictly; {len(pictures)} pictures, largest logit "
          f"{theirs.abs().max().item():.3f}, largest difference {difference:.2e} of it")
    return 0 if difference <= 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
