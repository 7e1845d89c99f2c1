"""What a device draws and what holds it back, in words and in base units."""

from pathlib import Path

import pytest

from modelhound.meter import PowerMeter, PowerReading, power


def test_a_cpu_is_read_without_a_driver() -> None:
    with PowerMeter("cpu") as meter:
        reading = meter.read()
    assert reading.throttled == ()
    assert reading.clock_hertz is None or 1e8 < reading.clock_hertz < 1e10


@pytest.mark.parametrize(
    ("bits", "reasons"), [(0x0, ()), (0x1, ()), (0x4, ("power cap",)), (0x61, ("heat (software)", "heat (hardware)"))]
)
def test_reasons_for_running_slowly_are_named_and_being_idle_is_none(bits: int, reasons: tuple[str, ...]) -> None:
    assert power._name_reasons(bits) == reasons


def test_the_energy_of_all_packages_is_added(tmp_path: Path) -> None:
    counted = {"package-0": 2_000_000, "psys": 90_000_000, "package-1": 500_000}  # the second holds the others
    for number, (name, microjoules) in enumerate(counted.items()):
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        (zone / "name").write_text(f"{name}\n")
        (zone / "energy_uj").write_text(f"{microjoules}\n")
    assert power._read_rapl(tmp_path) == pytest.approx(2.5)


def test_energy_that_nobody_counts_is_none(tmp_path: Path) -> None:
    assert power._read_rapl(tmp_path) is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert power._read_rapl(tmp_path) is None


def test_a_reading_says_nothing_unless_told() -> None:
    assert PowerReading().energy_joules is None
