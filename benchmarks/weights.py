"""What it takes to tell near-copies of a network apart, and to bring a network to the device.

    python benchmarks/weights.py [--device cuda] [--model resnet152] [--copies 4] [--rounds 5] [--json]

Two comparisons, each interleaved, in this process:
    hashing   every file by itself / beside the first of its kind, where equal bytes are compared; CPU seconds of a thread
    moving    to the device and bfloat16, tensor by tensor / by `features.staging`, through pinned memory; wall seconds
              until the device is through (without a device there is nothing to gain)
A copy differs from the first in the last tenth of its tensors. Weights are random: only time is measured.
"""

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from modelhound.compat import import_timm
from modelhound.features.staging import Staging
from modelhound.meter import describe_machine, seconds_now
from modelhound.models.parts import all_tensors
from modelhound.models.tensor_hashes import TensorHasher
from modelhound.records import to_plain


def time_hashing(model: str, num_copies: int, num_rounds: int) -> dict[str, Any]:
    """CPU seconds of a file, of several rounds the least."""
    state = import_timm().create_model(model, num_classes=0).state_dict()
    last = list(state)[-len(state) // 10 :]
    alone, beside = [], []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.safetensors" for number in range(num_copies)]
        for path in paths:
            fresh = {name: torch.randn_like(state[name]) for name in last if state[name].is_floating_point()}
            save_file({**state, **fresh}, path)
        for _ in range(num_rounds):
            hasher = TensorHasher()
            hasher.hash_files(paths[:1])
            for path in paths[1:]:
                alone.append(_cpu_seconds(partial(TensorHasher().hash_files, [path])))
                beside.append(_cpu_seconds(partial(hasher.hash_files, [path])))
        size = paths[0].stat().st_size
    return {"file_bytes": size, "alone_seconds": min(alone), "beside_seconds": min(beside), "samples": [alone, beside]}


def time_moving(model: str, device: str, num_rounds: int) -> dict[str, Any]:
    """Wall seconds of a whole network, of several rounds the median; the first round, in which memory is taken, apart."""
    module = import_timm().create_model(model, num_classes=0)
    tensors = [tensor.detach() for _, tensor in all_tensors(module)]
    kinds = [torch.bfloat16 if tensor.is_floating_point() else tensor.dtype for tensor in tensors]
    templates = [
        torch.empty(tensor.shape, dtype=kind, device="meta") for tensor, kind in zip(tensors, kinds, strict=True)
    ]
    started = seconds_now()
    staging = Staging(device)
    pinned = seconds_now() - started
    one_by_one, together = [], []
    for _ in range(num_rounds + 1):
        one_by_one.append(
            _wall_seconds(device, lambda: [each.to(device, kind) for each, kind in zip(tensors, kinds, strict=True)])
        )
        together.append(_wall_seconds(device, lambda: staging.bring(tensors, templates)))
    return {
        "num_tensors": len(tensors),
        "pinning_seconds": pinned,
        "first_seconds": [one_by_one[0], together[0]],
        "one_by_one_seconds": sorted(one_by_one[1:])[num_rounds // 2],
        "together_seconds": sorted(together[1:])[num_rounds // 2],
        "samples": [one_by_one, together],
    }


def _cpu_seconds(work: Any) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def _wall_seconds(device: str, work: Any) -> float:
    start = seconds_now()
    made = work()
    if device != "cpu":
        torch.cuda.synchronize(device)
    seconds = seconds_now() - start
    del made
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet152")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    hashing = time_hashing(asked.model, asked.copies, asked.rounds)
    moving = time_moving(asked.model, asked.device, asked.rounds)
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), "hashing": hashing, "moving": moving}))
        return
    print(f"{asked.model}: {hashing['file_bytes'] / 1e6:.0f} MB, {moving['num_tensors']} tensors")
    print(f"hashing  alone {hashing['alone_seconds']:.3f} s  beside {hashing['beside_seconds']:.3f} s")
    print(
        f"moving   one by one {moving['one_by_one_seconds']:.3f} s  together {moving['together_seconds']:.3f} s"
        f"  (first {moving['first_seconds'][0]:.3f} and {moving['first_seconds'][1]:.3f}, "
        f"pinning {moving['pinning_seconds']:.3f})"
    )


if __name__ == "__main__":
    main()
