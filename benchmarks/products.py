"""How fast torch's two libraries multiply in linear layers on this CPU, by themselves and in whole networks.

torch gives them to MKL; `modelhound.models.computing` gives them to oneDNN where MKL is held back. Both take turns in one
process, in fp32.

    python benchmarks/products.py [--threads N] [--json]
"""

import argparse
import contextlib
import functools
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from modelhound.compat import import_timm, import_transformers, keep_freed_memory
from modelhound.meter import Meter, count_cores, describe_machine
from modelhound.models import computing
from modelhound.records import to_plain

SHAPES = [
    *((rows, 384, 1536) for rows in (1, 8, 64, 512, 2048)),
    *((2048, 1536, 384), (2048, 768, 768), (2048, 768, 3072), (4096, 64, 64), (4096, 32, 32), (64, 64, 64)),
]
"""Rows, features that come in, features that go out."""
NUM_ROUNDS = 15


def compare(what: str, work: Callable[[], torch.Tensor], exact: torch.Tensor | None = None) -> dict[str, Any]:
    """Median seconds of each, in turns; and how far each is from `exact`, or from the other."""
    seconds: dict[str, list[float]] = {"torch": [], "oneDNN": []}
    made = {}
    for turn in range(NUM_ROUNDS + 1):
        for name, way in (("torch", contextlib.nullcontext), ("oneDNN", computing._LinearByOneDnn)):
            meter = Meter()
            with torch.inference_mode(), way(), meter.phase(name):
                made[name] = work()
            if turn:
                seconds[name].append(meter.samples[0].total)
    medians = {name: statistics.median(some) for name, some in seconds.items()}
    ratios = sorted(one / other for one, other in zip(seconds["torch"], seconds["oneDNN"], strict=True))
    true = made["torch"] if exact is None else exact
    return {
        "what": what,
        **{f"{name} ms": 1e3 * each for name, each in medians.items()},
        "times as fast": statistics.median(ratios),
        "least and most": [ratios[1], ratios[-2]],
        **{f"{name} off by": float((each - true).norm() / true.norm()) for name, each in made.items()},
    }


def layers() -> list[dict[str, Any]]:
    rows = []
    for num_rows, inputs, outputs in SHAPES:
        some, weight, bias = torch.randn(num_rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
        exact = functional.linear(some.double(), weight.double(), bias.double())
        work = functools.partial(functional.linear, some, weight, bias)
        rows.append(compare(f"{num_rows} x {inputs} to {outputs}", work, exact))
    return rows


def _bert_config(transformers: Any) -> Any:
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return transformers.BertConfig(**sizes)


def networks() -> list[dict[str, Any]]:
    transformers, timm = import_transformers(), import_timm()
    config = _bert_config(transformers)
    encoder = transformers.BertModel(config).eval()
    tokens = torch.randint(0, config.vocab_size, (64, 40))
    rows = [compare("BERT, 6 layers of 384, 64 texts of 40 tokens", lambda: encoder(tokens)[0])]
    for name, side in (
        ("vit_small_patch16_224", 224),
        ("convnext_atto", 224),
        ("mixer_s32_224", 224),
        ("resnet18", 96),
        ("mobilenetv3_small_050", 224),
    ):
        network, images = timm.create_model(name).eval(), torch.randn(16, 3, side, side)
        rows.append(compare(f"{name}, 16 images of {side} pixels", functools.partial(network.forward_features, images)))
    return rows


def learning() -> list[dict[str, Any]]:
    """A step of fine-tuning: forward and backward."""
    transformers, timm = import_transformers(), import_timm()
    encoder = transformers.BertModel(
        _bert_config(transformers), add_pooling_layer=False
    ).eval()  # nothing left out at random
    tokens = torch.randint(0, 30_000, (32, 40))
    network, images = timm.create_model("vit_small_patch16_224", num_classes=10), torch.randn(8, 3, 224, 224)

    def step(module: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> torch.Tensor:
        module.zero_grad()
        with torch.inference_mode(mode=False), torch.enable_grad():
            made = forward()
            made.square().mean().backward()
        return made.detach()

    return [
        compare("learning: the same BERT, 32 texts of 40 tokens", lambda: step(encoder, lambda: encoder(tokens)[0])),
        compare("learning: the same ViT, 8 images", lambda: step(network, lambda: network(images))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=count_cores())
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    keep_freed_memory()
    rows = layers() + networks() + learning()
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), "threads": asked.threads, "rows": rows}, indent=1))
        return
    print(f"{describe_machine().cpu}, {asked.threads} threads; modelhound takes {computing.linear_library('cpu')}\n")
    print(
        "| what | torch (MKL), ms | oneDNN, ms | times as fast | torch off by | oneDNN off by |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        least, most = row["least and most"]
        print(
            f"| {row['what']} | {row['torch ms']:.3g} | {row['oneDNN ms']:.3g} | {row['times as fast']:.2f} "
            f"({least:.2f} – {most:.2f}) | {row['torch off by']:.1e} | {row['oneDNN off by']:.1e} |"
        )


if __name__ == "__main__":
    main()
