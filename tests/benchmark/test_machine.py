"""Energy from counters that start over."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.benchmark.machine import EnergyMeter


def test_energy_counters_that_start_over_or_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    (folder / "max_energy_range_uj").write_text("10000000")
    (folder / "energy_uj").write_text("9000000")
    meter = EnergyMeter(tmp_path)
    (folder / "energy_uj").write_text("9500000")
    assert meter.joules() == pytest.approx(0.5)
    (folder / "energy_uj").write_text("500000")
    assert meter.joules() == pytest.approx(1.0)
    (folder / "energy_uj").unlink()
    assert meter.joules() is None
    assert EnergyMeter(tmp_path / "nothing").joules() is None
