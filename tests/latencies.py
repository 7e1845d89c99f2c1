"""Points of a sweep with times that were made up."""

import numpy as np

from modelhound.records import CeilingsMeasured, LatencyMeasured, LatencyPoint

CEILINGS = CeilingsMeasured(
    device="cuda:0",
    device_name="a GPU",
    precision="fp32",
    flops_per_second=1e13,
    bytes_per_second=1e12,
    memory_limit_bytes=10**10,
)


def record(
    seconds: float,
    *,
    model: str = "tv:resnet18",
    batch: int = 1,
    image: int | None = 224,
    tokens: int | None = None,
    device: str = "cuda:0",
    kernel_seconds: float | None = None,
    host_seconds: float | None = None,
    flops: float | None = None,
    num_samples: int = 20,
    noise: float = 0.02,
) -> LatencyMeasured:
    generator = np.random.default_rng([batch, image or 0, tokens or 0, *model.encode()])
    return LatencyMeasured(
        point=LatencyPoint(model=model, batch=batch, image=image, tokens=tokens, precision="fp32", device=device),
        seconds=tuple(float(each) for each in seconds * np.exp(noise * generator.standard_normal(num_samples))),
        host_seconds=(host_seconds,) * num_samples if host_seconds else (),
        kernel_seconds=kernel_seconds,
        first_call_seconds=1.0,
        num_warmup=2,
        stopped="settled",
        num_parameters=11_700_000,
        flops=flops or 1e5 * batch * (image or 1) ** 2 * (tokens or 1),
        activation_bytes=1e7 * batch,
        moved_bytes=2e7 * batch,
        weight_bytes=4.7e7,
        num_kernels=70,
        peak_memory_bytes=10**8,
        process_memory_bytes=10**9,
        overhead_seconds=0.1,
        place=0,
    )
