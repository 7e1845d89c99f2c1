"""The engine against the plain loop, successive halving and prefix sharing alone, on pools of related and unrelated models.

    python benchmarks/engine.py [--pool NAME…] [--contestant NAME…] [--quick] [--compare] [--cold] [--repeats N] [--json]

A pool (`engine_pools`) is made by the recipe of the field: the first model has some weights, each further one copies a random
earlier one and draws its last blocks again, on average a given share of the depth. Weights are random, so what is measured is
time and whether all contestants find the same order, not whether the order is good. Images are JPEGs of 500 x 375 pixels whose
classes differ in colour and texture; texts are the embedded `sms`. Every contestant (`engine_children`) runs in a process of
its own, in turns, with an empty cache; imports are not timed, everything after them is.

Contestants
    plain       each model by itself: DataLoader with all cores, batch 128, fp32, 100 epochs of an SGD probe
    halving     the same on 1/4 of the items for all models, 1/2 for the better half, all for the better quarter
    sharing     equal prefixes run once, everything else plain: fp32, no race
    engine      what `hound search` does
    exhaustive  the same without a race
    half        the engine with --precision bf16, which on a CPU has to be asked for
    layermean   the same with --layers mean, which is what the ranker does
    ranker      transformer-ranker 0.2.0 on the same encoders and texts (`make .rivals` installs it apart)
    again       the engine's search once more, into the same run folder
    remembered  once more into a new run folder: only the features are remembered
    memory      the engine with --memory at a quarter of what it took without
    relabelled  the engine on the same items with other labels, features remembered
Where the plain loop would take too long, it is timed on every k-th model and scaled; `timed` says on how many.

Before them `--explain` is asked what it expects; what happened is held against it, in all and by phase. A race may end anywhere
between the least and the most that it expects. Own memory is what a contestant came to hold itself, not of files, above what it
held before it began, looked at every 4 ms.

The floor is the largest of: decoding every item once, running every distinct layer once at the rate it has by itself, reading
every distinct byte of weights once at the rate of the disk (of the page cache, unless --cold). A race may go below it.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from children import measure_in_child
from engine_children import forget_pages
from engine_pools import POOLS, make_items, relabel
from modelhound.analysis.ranking import rank_agreement
from modelhound.compat import WAITING_ASLEEP
from modelhound.meter import describe_machine, seconds_now
from modelhound.records import to_plain

USUAL = ("plain", "halving", "sharing", "engine", "again", "remembered", "memory")
CONTESTANTS = (*USUAL, "exhaustive", "half", "layermean", "ranker", "relabelled")
AFTERWARDS = ("again", "remembered", "relabelled")
"""Those that use what the engine has left behind."""
TIMEOUT_SECONDS = 1500
RIVALS = Path(__file__).parents[1] / ".rivals"
HERE = Path(__file__).parent


class Contest:
    """One pool on disk, and what was measured on it."""

    def __init__(self, name: str, folder: Path, *, quick: bool, cold: bool) -> None:
        self.name, self.pool, self._folder, self._cold = name, dict(POOLS[name]), folder, cold
        if quick:
            self.pool["items"] //= 10
            self.pool["every"] = self.pool["halving_every"] = min(6, self.pool["models"])
            self.pool["contestants"] = self.pool.get("quick", USUAL)
        started = seconds_now()
        self.models = list(measure_in_child("engine_pools:make_models", str(folder / "models"), self.pool))
        self.data = make_items(folder, self.pool)
        self.rows: dict[str, dict[str, Any]] = {}
        self.floor = self._in_child("measure_floor", self.models, self.data, self.pool["device"], cold)
        self.foreseen: dict[str, Any] = {}
        _say(f"{name}: made, and its floor measured, in {seconds_now() - started:.0f} s: {self.floor}")

    def go(self, contestants: list[str]) -> None:
        """One turn of each; of several turns the fastest counts."""
        cache, first_run = self._new_folder("cache"), self._new_folder("run")
        if not self.foreseen and {"engine", "exhaustive"}.intersection(contestants):
            self.foreseen = self._in_child("explain", self.models, self.data, self.pool["device"], {})
        for contestant in contestants:
            if contestant in AFTERWARDS and "engine" not in contestants:
                continue
            timed = self.models[:: self._every(contestant)]
            if self._cold:
                forget_pages([path for path in self._folder.rglob("*") if path.is_file()])
            made = self._time(contestant, timed, cache, first_run)
            made["timed"] = len(timed)
            made["scaled_seconds"] = made["seconds"] * len(self.models) / len(timed)
            _say(f"{self.name} {contestant}: {made['seconds']:.2f} s on {len(timed)} of {len(self.models)}")
            known = self.rows.get(contestant)
            if known is None or made["scaled_seconds"] < known["scaled_seconds"]:
                self.rows[contestant] = made

    def compare(self) -> None:
        """How far the rankings of the engine agree with the exhaustive one in fp32."""
        plain = self.rows.get("plain", {})
        if plain.get("timed") == len(self.models):
            truth = plain["ridge"]
        else:
            truth = self._in_child("exhaustive_scores", self.models, self.data, self.pool["device"])
        for contestant in ("engine", "exhaustive", "half", "memory", "remembered"):
            ours = self.rows.get(contestant, {}).get("scores")
            if ours:
                best = max(ours, key=lambda model: ours[model])
                self.rows[contestant] |= {
                    "kendall_tau": rank_agreement(
                        [truth[model] for model in self.models], [ours[model] for model in self.models]
                    ),
                    "same_best": truth[best] == max(truth.values()),
                    "lost_by_best": max(truth.values()) - truth[best],
                }

    def result(self) -> dict[str, Any]:
        """Everything, with ratios."""
        plain = self.rows.get("ranker", self.rows.get("plain", {})).get("scaled_seconds")
        first = self.rows.get("engine", {}).get("scaled_seconds")
        floor = max(self.floor[f"{what}_seconds"] for what in ("decode", "forward", "read"))
        for contestant in ("engine", "exhaustive"):
            if self.foreseen and "error" not in self.rows.get(contestant, {"error": ""}):
                self.rows[contestant]["foreseen"] = _hold_against(self.foreseen, self.rows[contestant])
        for contestant, row in self.rows.items():
            base = first if contestant in (*AFTERWARDS, "memory") else plain
            is_done = "error" not in row
            row["ratio"] = base / row["scaled_seconds"] if base and is_done else None
            row["times_floor"] = row["scaled_seconds"] / floor if is_done else None
        return {
            "pool": self.name,
            **self.pool,
            "cold": self._cold,
            "floor_seconds": floor,
            "floor": self.floor,
            "foreseen": self.foreseen,
            "rows": self.rows,
        }

    def _time(self, contestant: str, timed: list[str], cache: str, first_run: str) -> dict[str, Any]:
        if contestant == "ranker":
            path = os.pathsep.join([str(HERE), str(RIVALS), *filter(None, sys.path)])
            return dict(self._in_child("contest_ranker", timed, self.data, PYTHONPATH=path, HF_HUB_OFFLINE="1"))
        options: dict[str, Any] = {}
        data, own_cache = self.data, self._new_folder("cache")
        if contestant in ("engine", *AFTERWARDS):
            own_cache = cache
        if contestant in ("engine", "again"):
            options["run"] = first_run
        if contestant == "memory":
            first = self.rows.get("engine", {})
            options["memory"] = str(
                (first.get("own_bytes") or first.get("peak_bytes") or self.floor["plan_bytes"]) // 4
            )
        if contestant == "relabelled":
            data = relabel(self.data, Path(self._new_folder("relabelled")))
        made = self._in_child(
            "contest",
            *(contestant, timed, data, self.pool["device"], self.pool["items"], options),
            MODELHOUND_CACHE=own_cache,
        )
        return {**made, **{f"asked_{name}": value for name, value in options.items() if name != "run"}}

    def _in_child(self, function: str, *arguments: Any, **environment: str) -> Any:
        by_hand = function == "contest_ranker" or arguments[0] in (
            "plain",
            "halving",
        )  # as whoever writes them starts them
        waiting = {} if by_hand else WAITING_ASLEEP
        environment = {"MODELHOUND_CACHE": self._new_folder("cache"), **waiting, **environment}
        return measure_in_child(
            f"engine_children:{function}", *arguments, timeout_seconds=TIMEOUT_SECONDS, **environment
        )

    def _every(self, contestant: str) -> int:
        if contestant == "plain":
            return int(self.pool.get("every", 1))
        return int(self.pool.get("halving_every", 1)) if contestant == "halving" else 1

    def _new_folder(self, what: str) -> str:
        return tempfile.mkdtemp(prefix=f"{what}-", dir=self._folder)


def measure(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="hound-engine-"))
    try:
        contest = Contest(name, folder, quick=asked.quick, cold=asked.cold)
        entered = [each for each in contest.pool.get("contestants", USUAL) if each in (asked.contestant or CONTESTANTS)]
        for _ in range(asked.repeats):
            contest.go(entered)
        if asked.compare:
            contest.compare()
        return contest.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_PHASES = {
    "read weights and build": ("read weights", "build model", "weights to device"),
    "wait for data": ("wait for data", "data to device"),
    "forward": ("forward",),
    "score": ("score",),
}
"""What is foreseen as one phase, and the phases of the records that it stands for."""


def _hold_against(foreseen: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Predicted over actual seconds, in all and by phase; a race that dropped models is only held against both ends."""
    seconds, dropped = row["seconds"], row["dropped"]
    least = foreseen["least_seconds"] if dropped else foreseen["seconds"]
    nearest = min(max(seconds, least), foreseen["seconds"])
    phases = (
        {}
        if dropped
        else {
            phase: [foreseen["phases"].get(phase, 0.0), sum(row["phases"].get(each, 0.0) for each in actual)]
            for phase, actual in _PHASES.items()
        }
    )
    return {"in_all": nearest / seconds, "most": foreseen["seconds"], "least": least, "phases": phases}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(results: list[dict[str, Any]]) -> None:
    print(
        "| pool | contestant | s | times plain (or the first) | times the floor | peak MB | own MB | weights read MB | tau |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for result in results:
        for contestant, row in result["rows"].items():
            cells = (
                result["pool"],
                contestant + (f" ({row['timed']} models, scaled)" if row["timed"] < result["models"] else ""),
                row.get("error") or f"{row['scaled_seconds']:.2f}",
                "" if row["ratio"] is None else f"{row['ratio']:.1f}",
                "" if row["times_floor"] is None else f"{row['times_floor']:.2f}",
                f"{row['peak_bytes'] / 1e6:.0f}",
                _say_own(row),
                f"{row['read_bytes'] / 1e6:.0f}",
                "" if row.get("kendall_tau") is None else _say_agreement(row),
            )
            print(f"| {' | '.join(cells)} |")
        print(f"\n{result['pool']}: {_say_floor(result)}")
        for contestant, row in result["rows"].items():
            if "foreseen" in row:
                print(f"{contestant}: {_say_foreseen(row)}")
        print()


def _say_own(row: dict[str, Any]) -> str:
    allowed = f" of {int(row['asked_memory']) / 1e6:.0f} allowed" if "asked_memory" in row else ""
    return f"{row.get('own_bytes', 0) / 1e6:.0f}{allowed}"


def _say_foreseen(row: dict[str, Any]) -> str:
    foreseen = row["foreseen"]
    phases = "".join(f", {phase} {said:.2f} ({was:.2f})" for phase, (said, was) in foreseen["phases"].items())
    least = f"{foreseen['least']:.2f} to " if foreseen["least"] < foreseen["most"] else ""
    return (
        f"foreseen {least}{foreseen['most']:.2f} s, took {row['seconds']:.2f}: {foreseen['in_all']:.2f} of it{phases}; "
        f"{row['dropped']} dropped"
    )


def _say_floor(result: dict[str, Any]) -> str:
    floor = result["floor"]
    distinct, rate, plan = (floor[name] / 1e6 for name in ("distinct_bytes", "read_bytes_per_second", "plan_bytes"))
    return (
        f"floor {result['floor_seconds']:.2f} s (decode {floor['decode_seconds']:.2f}, distinct layers "
        f"{floor['forward_seconds']:.2f}, distinct bytes {floor['read_seconds']:.2f}: {distinct:.0f} MB at {rate:.0f} MB/s); "
        f"a plan without a limit takes {plan:.0f} MB"
    )


def _say_agreement(row: dict[str, Any]) -> str:
    best = "same best" if row["same_best"] else f"best {row['lost_by_best']:.3f} worse"
    return f"{row['kendall_tau']:.2f}, {best}, {row['dropped']} dropped"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", choices=POOLS, action="append", help="all that a CPU can run by default")
    parser.add_argument("--contestant", choices=CONTESTANTS, action="append", help="all that suit the pool by default")
    parser.add_argument("--quick", action="store_true", help="a tenth of the items, plain loop on every 6th model")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--compare", action="store_true", help="also rank all models in fp32 without a race, and compare"
    )
    parser.add_argument("--cold", action="store_true", help="drop files from the page cache before each contestant")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    names = asked.pool or [
        name for name, pool in POOLS.items() if pool["device"] != "cuda" and not (asked.quick and not pool.get("quick"))
    ]
    results = [measure(name, asked) for name in names]
    if asked.json:
        print(json.dumps({"machine": to_plain(describe_machine()), "results": results}))
    else:
        show(results)


if __name__ == "__main__":
    main()
