"""Two Ray nodes in network namespaces of their own, a cable between them, and what a search does when it is pulled out.

    unshare --user --map-root-user --net --pid --fork --kill-child --mount-proc python tests/ray/namespaces.py FOLDER

In:  an empty folder; rights over the network of the namespace that this runs in
Out: one line of JSON: what one machine finds, what the two nodes find, what they find with the cable pulled out, and whether
     it was out before they were done
With --pid all processes of the nodes end with this one.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE, THERE, PORT = "10.77.0.1", "10.77.0.2", "6379"
QUICKLY = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "5000"}
MODELS = "zoo:resnet-garments_a,zoo:resnet-glyphs,zoo:vit-rotation,zoo:mobilenet-shapes,zoo:resmlp-rotation"
OPTIONS: dict[str, Any] = {"limit": 400, "exhaustive": True, "scorers": "ridge,knn", "workers": 0, "device": "cpu"}


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ |= {"HOME": str(folder), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", **QUICKLY}
    other = subprocess.Popen(["unshare", "--net", "sleep", "600"])
    try:
        lay_cable(other.pid)
        with tempfile.TemporaryDirectory(prefix="hound", dir="/tmp", ignore_cleanup_errors=True) as short:
            start_nodes(other.pid, short)
            found: dict[str, Any] = {
                "one machine": search(folder, "local", "local"),
                "two nodes": search(folder, "two", f"ray://{HERE}:{PORT}"),
            }
            found["cable pulled out"], found["in mid-run"] = search_while(folder)
        print(json.dumps(found))  # noqa: T201
    finally:
        other.kill()


def lay_cable(pid: int) -> None:
    """Between this namespace and that of the process."""
    inside = ["nsenter", "--target", str(pid), "--net"]
    deadline = time.monotonic() + 10
    own, its = Path("/proc/self/ns/net"), Path(f"/proc/{pid}/ns/net")
    while its.readlink() == own.readlink() and time.monotonic() < deadline:
        time.sleep(0.05)
    call("ip", "link", "add", "cable", "type", "veth", "peer", "name", "far")
    call("ip", "link", "set", "far", "netns", str(pid))
    for prefix, name, address in (([], "cable", HERE), (inside, "far", THERE)):
        call(*prefix, "ip", "link", "set", "lo", "up")
        call(*prefix, "ip", "address", "add", f"{address}/24", "dev", name)
        call(*prefix, "ip", "link", "set", name, "up")


def start_nodes(pid: int, short: str) -> None:
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--object-store-memory=100000000"]
    call(
        *ray,
        "--head",
        f"--node-ip-address={HERE}",
        f"--port={PORT}",
        f"--temp-dir={short}",
        "--include-dashboard=false",
    )
    far = ["nsenter", "--target", str(pid), "--net"]
    call(*far, *ray, f"--address={HERE}:{PORT}", f"--node-ip-address={THERE}")


def search(folder: Path, name: str, on: str) -> list[Any]:
    """In a process of its own, which connects anew."""
    program = (
        "import json, sys, modelhound; run, on, models, options = json.loads(sys.argv[1]);"
        "found = modelhound.search('fashion', models, run=run, on=on, **options);"
        "assert found.failures == ();"
        "print(json.dumps([[row.model, row.rank, row.score] for row in found.ranking.models]))"
    )
    given = json.dumps([str(folder / name), on, MODELS, OPTIONS])
    environment = {**os.environ, "MODELHOUND_CACHE": str(folder / f"cache of {name}")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, given],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    answer: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def search_while(folder: Path) -> tuple[list[Any], bool]:
    """Pull the cable out as soon as something was measured."""
    records = folder / "pulled" / "records.jsonl"
    pulled = threading.Event()

    def pull() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if records.exists() and b'"kind":"model"' in records.read_bytes():
                break
            time.sleep(0.05)
        call("ip", "link", "set", "cable", "down")
        pulled.set()

    threading.Thread(target=pull, daemon=True).start()
    found = search(folder, "pulled", f"ray://{HERE}:{PORT}")
    return found, pulled.is_set()


def call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout[-500:]} {done.stderr[-1500:]}")


if __name__ == "__main__":
    main()
