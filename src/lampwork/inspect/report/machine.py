"""The machine that a report was made on."""

from __future__ import annotations

from typing import Any

from lampwork import pristine
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.inspect.machine.limits import Limits
from lampwork.inspect.profile.kept_limits import limits_of_machine
from lampwork.inspect.profile.watch import UNSEEN, Times
from lampwork.processor import processor
from lampwork.records import record


@record(eq=False)
class Measured:
    """How long programs took in the runs that were seen, and what the machine can do at most, if there were any."""

    times: Times
    limits: Limits | None

    @staticmethod
    def of(times: Times) -> Measured:
        """With the limits of this machine, which are measured now if nobody has done so."""
        return Measured(times, limits_of_machine() if times.seen else None)


NOTHING = Measured(UNSEEN, None)


def machine_data(limits: Limits | None) -> dict[str, Any]:
    """The processor, the widest instruction set that code is made for, how many threads torch uses, and what these can
    do at most, if that is known."""
    return {
        "cpu": processor(),
        "isa": host_isa("").name,
        "threads": pristine.get_num_threads(),
        **({} if limits is None else _peaks(limits)),
    }


def _peaks(limits: Limits) -> dict[str, Any]:
    return {
        "peak_gflops": {dtype: rate for dtype, rate in limits.rates.items() if rate},
        "peak_gbs": max(limits.read, limits.copy),
        "peak_cache_gbs": max(limits.private_read, limits.private_copy),
    }
