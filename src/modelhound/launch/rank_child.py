"""What every rank runs under torchrun: one function, with torch.distributed ready.

In:  argv: the folder in which `ranks` has left the request; the environment that torchrun gives each rank
Out: in that folder what the function returned on this rank, or why it gave up, and the log of what it printed
Nothing here knows what the function does or how many launches there are.
"""

import contextlib
import datetime
import os
import pkgutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec
import psutil

from modelhound.errors import HoundError
from modelhound.launch.ranks import PARENT, REQUEST, GaveUp, LaunchRequest, put_file
from modelhound.records import to_plain

_DISTRIBUTED_FAULT, _ORPHANED = 3, 4
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_FOR_OTHERS = 1.0  # a rank that lost another one must not be noticed before the one that is gone


def main(folder: Path) -> int:
    """Call the function; 0 if it returned, and what it returned or why it gave up in a file of this rank."""
    rank = int(os.environ["RANK"])
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=LaunchRequest)
    sys.path[:] = list(dict.fromkeys([*request.search_path, *sys.path]))
    end_with(os.getppid(), *([int(os.environ[PARENT])] if PARENT in os.environ else []))
    try:
        value = _call(request)
    except HoundError as error:
        gave_up = GaveUp(error=type(error).__name__, message=str(error))
        put_file(folder / f"rank-{rank}.error", msgspec.json.encode(gave_up))
        return 1
    except Exception:  # a fault of ours or of a library: the log's tail tells the parent
        traceback.print_exc()
        time.sleep(_SECONDS_FOR_OTHERS)
        return _DISTRIBUTED_FAULT
    put_file(folder / f"rank-{rank}.json", msgspec.json.encode(value))
    return 0


def end_with(*others: int) -> None:
    """End this process, from now on, as soon as one of these is gone, such as the command or torchrun: whoever is killed cannot
    end its ranks, which would train on for hours and write where the next start of the same command does."""

    def watch() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = [psutil.Process(each) for each in others]
            while all(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(_ORPHANED)  # torchrun, if it is still there, then ends the others and itself

    threading.Thread(target=watch, daemon=True).start()


def _call(request: LaunchRequest) -> Any:
    import torch
    from torch import distributed

    on_gpu = request.device.startswith("cuda")
    local_rank = int(os.environ["LOCAL_RANK"])
    if on_gpu:
        torch.cuda.set_device(local_rank)
    has_nccl = on_gpu and distributed.is_nccl_available()  # gloo carries a GPU's tensors too, through the host
    distributed.init_process_group(
        "nccl" if has_nccl else "gloo",
        timeout=datetime.timedelta(seconds=request.deadline_seconds),
        device_id=torch.device("cuda", local_rank) if has_nccl else None,
    )
    value = pkgutil.resolve_name(request.function)(request.argument)
    distributed.barrier()  # nobody leaves while another still needs it
    distributed.destroy_process_group()
    return to_plain(value)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # An orderly end would wait for ranks that wait for this one; and where all went well, one in hundreds dies of it, after its
    # work is done and kept: torch takes down threads that still run ("terminate called without an active exception").
    os._exit(code)
