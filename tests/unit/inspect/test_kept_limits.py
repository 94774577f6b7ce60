"""The limits of the machine are kept, and a step that beats them has them measured again."""

import json
import os

import pytest
import torch

import lampwork
from lampwork.inspect.machine import limits as measuring
from lampwork.inspect.machine.limits import Limits, measure_limits
from lampwork.inspect.profile import kept_limits
from lampwork.inspect.profile.kept_limits import limits_of_machine, limits_reached

THREADS = torch.get_num_threads()


def limits(gflops=100.0, read=10.0):
    return Limits(THREADS, gflops, read, 8.0, 30.0, 25.0, 90.0, 70.0, 1 << 25, 1 << 20, 0.0, 200.0)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """What the next measurements give, in a process and a cache folder that know nothing."""
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path))
    monkeypatch.setattr(kept_limits, "_known", kept_limits._Known())
    results = []
    monkeypatch.setattr(kept_limits, "measure_limits", lambda *given: results.pop(0))
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield results
    torch.set_num_threads(threads)


def forget(monkeypatch):
    """As another process begins."""
    monkeypatch.setattr(kept_limits, "_known", kept_limits._Known())


def test_they_are_measured_once_and_kept(measured, tmp_path, monkeypatch):
    measured.append(limits())
    assert limits_of_machine() == limits() == limits_of_machine()
    forget(monkeypatch)
    assert limits_of_machine() == limits()
    (file,) = tmp_path.iterdir()
    for gflops, damage in ((120.0, "{"), (130.0, "[" * 60_000), (140.0, " " * 100_000 + file.read_text())):
        file.write_text(damage)
        forget(monkeypatch)
        measured.append(limits(gflops))
        assert limits_of_machine() == limits(gflops)


@pytest.mark.timeout(60)
def test_what_is_no_file_is_not_waited_for(measured, tmp_path, monkeypatch):
    measured.append(limits())
    limits_of_machine()
    (file,) = tmp_path.iterdir()
    file.unlink()
    os.mkfifo(file)
    forget(monkeypatch)
    measured.append(limits(120.0))
    assert limits_of_machine() == limits(120.0) and file.is_file()


def test_without_a_cache_folder_a_process_measures_once(measured, monkeypatch):
    monkeypatch.setenv("LAMPWORK_CACHE", "off")
    measured.append(limits())
    assert limits_of_machine() == limits_of_machine() == limits()


def test_who_beats_them_has_them_measured_again_and_the_larger_kept(measured, tmp_path, monkeypatch):
    measured += [limits(gflops=100.0, read=10.0), limits(gflops=150.0, read=9.0)]
    first = limits_of_machine()
    assert limits_reached(first, 1.05) is first and len(measured) == 1
    larger = limits(gflops=150.0, read=10.0)
    assert limits_reached(first, 1.2) == larger == limits_of_machine()
    # Once in a process: some steps are faster than any limit says.
    assert limits_reached(larger, 1.2) == larger and not measured
    forget(monkeypatch)
    assert limits_of_machine() == larger
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["gflops"] == 150.0


def test_a_profile_shows_the_shares_of_the_larger_ones(measured):
    fn, x = lampwork.compile(lambda x: x @ x), torch.randn(256, 256)
    fn(x)
    with lampwork.profile() as p:
        fn(x)
    measured += [limits(gflops=0.001), limits(gflops=10_000.0)]
    (gemm,) = [row for row in p.rows if row.kind == "gemm"]
    assert 0 < gemm.limit < 1 and p.limits.gflops == 10_000.0 and not measured


def test_samples_are_spread_over_the_measuring(monkeypatch):
    order = []

    def rate(self, pool, seconds):
        order.append(id(self))
        return float(len(order))

    monkeypatch.setattr(measuring._Work, "rate", rate)
    found = measure_limits(1, seconds=0.001, large=1 << 20)
    each = len(order) // measuring.ROUNDS
    assert len(set(order)) == each and order == order[:each] * measuring.ROUNDS
    assert found.gflops == len(order) - each + 1
