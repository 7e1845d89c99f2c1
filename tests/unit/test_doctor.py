"""How `doctor` goes about it; what it finds is looked at in `tests/cli`."""

import pytest

from modelhound.records import Progress
from modelhound.verbs import doctor


def test_it_is_told_what_is_looked_at_until_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {name: look for name, look in doctor._LOOKS.items() if name in ("cores", "memory", "shared memory", "disk")}
    monkeypatch.setattr(doctor, "_LOOKS", quick)
    told: list[Progress] = []
    found = doctor.doctor(watch=told.append)
    assert [each.name for each in found.checks] == list(quick)
    assert [each.detail for each in told] == [*quick, ""]
    assert [each.done for each in told] == [0, 1, 2, 3, 4]
    assert {each.total for each in told} == {4}
