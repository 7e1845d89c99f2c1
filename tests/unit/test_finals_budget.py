"""A budget in seconds holds, whatever becomes of the machine: races on a clock that the tests turn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from finals_networks import write_coloured, write_networks
from modelhound.finals import holding, hourglass, spending, trial_pool, trials
from modelhound.finals.hourglass import Hourglass, TimeUpError
from modelhound.records import FinalsAnswer, FinalsCosts, TrialDone
from modelhound.settings import SearchSettings
from modelhound.store import read_run
from modelhound.verbs.search import SearchResult, run_search


@dataclass
class Clock:
    """Goes on a little with each look at it; from some look on the machine is busy, and more time passes."""

    look_seconds: float = 1.0
    busy_from: int = 10**9
    times_slower: float = 1.0
    now: float = 0.0
    num_looks: int = 0

    def __call__(self) -> float:
        self.num_looks += 1
        self.now += self.look_seconds * (self.times_slower if self.num_looks > self.busy_from else 1.0)
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (holding, hourglass, spending, trial_pool, trials):
        monkeypatch.setattr(module, "seconds_now", made)
    return made


def run_steps(glass: Hourglass, count: int) -> None:
    for _ in range(count):
        glass.check()


def test_steps_that_will_be_over_in_time_are_left_alone(clock: Clock) -> None:
    glass = Hourglass(60.0)
    glass.begin(50, share_after=0.1)
    run_steps(glass, 50)


def test_steps_that_became_slow_are_given_up_long_before_time_is_up(clock: Clock) -> None:
    clock.busy_from, clock.times_slower = 5, 3.0
    glass = Hourglass(100.0)
    glass.begin(60)
    with pytest.raises(TimeUpError):
        run_steps(glass, 60)
    assert clock.now < 60


def test_time_that_is_up_already_is_told_before_the_first_step(clock: Clock) -> None:
    with pytest.raises(TimeUpError):
        Hourglass(0.0).check()


def test_without_an_end_nobody_looks_at_the_clock(clock: Clock) -> None:
    glass = Hourglass(None)
    glass.begin(3)
    glass.check()
    assert clock.num_looks == 0


def race(tmp_path: Path, budget: str, *, run: str = "raced") -> SearchResult:
    """Two that nobody is certain to tell apart; of each, rungs take 10, 10, 20 and 40 steps, which last a look at the clock."""
    data = tmp_path / "coloured"
    if not data.exists():
        write_coloured(data, noise=30.0)
        write_networks(Path.cwd())
    file = next(Path.cwd().glob("networks_*.py"))
    models = (f"py:{file}:sharp", f"py:{file}:twin")
    return run_search(SearchSettings(str(data), models=models, finals="2", finals_budget=budget, run=Path(run)))


def answer_of(result: SearchResult) -> FinalsAnswer:
    assert result.ranking.finals is not None, result.to_json()["notes"]
    return result.ranking.finals


def test_a_machine_that_becomes_busy_does_not_overdraw_a_budget_in_seconds(clock: Clock, tmp_path: Path) -> None:
    clock.busy_from, clock.times_slower = 160, 8.0
    finals = answer_of(race(tmp_path, "300s"))
    costs, trials_done = (read_run(Path("raced")).of(kind) for kind in (FinalsCosts, TrialDone))
    assert clock.now <= 300
    assert finals.spent_seconds <= finals.budget_seconds == 300
    assert (finals.ended, finals.winner is None) == ("budget", False)
    assert max(trial.stage for trial in trials_done) == 1
    given_up = sum(record.given_up_seconds for record in costs)
    assert given_up > 0
    probing = sum(record.probing_seconds for record in costs)
    assert finals.spent_seconds == pytest.approx(probing + given_up + sum(each.waited_seconds for each in trials_done))
    again = answer_of(race(tmp_path, "300s"))
    assert [_told(row) for row in again.finalists] == [_told(row) for row in finals.finalists]
    clock.times_slower = 1.0
    assert answer_of(race(tmp_path, "500s")).finalists[0].num_epochs > finals.finalists[0].num_epochs
    assert read_run(Path("raced")).of(TrialDone)[: len(trials_done)] == trials_done


def test_a_share_leads_to_the_same_race_however_busy_the_machine_is(clock: Clock, tmp_path: Path) -> None:
    quiet = answer_of(race(tmp_path, "30%", run="quiet"))
    clock.busy_from, clock.times_slower = clock.num_looks + 20, 5.0
    busy = answer_of(race(tmp_path, "30%", run="busy"))
    assert [_told(row) for row in quiet.finalists] == [_told(row) for row in busy.finalists]
    assert busy.spent_seconds > 2 * quiet.spent_seconds
    assert busy.spent_seconds <= busy.budget_seconds
    assert quiet.spent_seconds <= quiet.budget_seconds


def _told(row: Any) -> tuple[Any, ...]:
    return row.model, row.state, row.score, row.num_epochs


def test_a_budget_that_turns_out_too_small_for_two_trials_is_told_and_the_search_is_not_lost(
    clock: Clock, tmp_path: Path
) -> None:
    clock.busy_from, clock.times_slower = 25, 1000.0
    result = race(tmp_path, "500s")
    assert result.ranking.finals is None
    assert any("expected a budget for one rung at least" in note for note in result.to_json()["notes"])
    assert len(result.ranking.models) == 2
