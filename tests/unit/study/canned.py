"""A document of a study with numbers made up for tests: two architectures, three switches."""

from __future__ import annotations

import copy
from typing import Any


def column(speedup: float = 1.0, noise: float = 0.005, **changes: Any) -> dict[str, Any]:
    return {
        "call_seconds": 0.01 / speedup,
        "speedup": speedup,
        "noise": noise,
        "first_call_seconds": 0.5,
        "peak_bytes": 1 << 20,
        "error": 1e-7,
        "agrees": True,
        "failure": "",
        "note": "",
        **changes,
    }


def failed(why: str = "RuntimeError: no") -> dict[str, Any]:
    nothing = dict.fromkeys(("call_seconds", "speedup", "noise", "first_call_seconds", "peak_bytes", "error"))
    return {**nothing, "agrees": None, "failure": why, "note": ""}


def switched(ratio: float, *, changes: bool = True, noise: float = 0.005) -> dict[str, Any]:
    """Without it a call takes `ratio` times as long."""
    return {**column(1 / ratio, noise), "steps": 7, "changes_code": changes}


def row(name: str, ratios: dict[str, float], eager: float = 0.5, **changes: Any) -> dict[str, Any]:
    """eager: its speed against the compiled one."""
    return {
        "name": name,
        "says": f"what {name} is made of",
        "batch": 8,
        "parameters": 1000,
        "parameter_bytes": 4000,
        "representation": {
            "regions": 1,
            "nodes": 12,
            "views": 2,
            "nodes_after_passes": 9,
            "operators": {"linear": 6, "add": 4},
            "breaks": [],
            "refusals": [],
            "guards": 2,
            "guards_after_changes": 30,
            "symbols": [],
        },
        "passes": {"library": 2},
        "rewrites": {"library": 2, "rms_norm_formula": 2},
        "fusion": {
            "nodes": 8,
            "steps": 4,
            "kinds": {"gemm": 3, "kernel": 1},
            "aten": {},
            "fused_nodes": 6,
            "largest_nodes": 3,
            "distinct_functions": 2,
            "joined": 5,
            "not_joined": 1,
            "reasons": {"2 definitions read it": 1},
        },
        "work": {
            "eager_flops": 2_000_000,
            "eager_bytes_read": 3000,
            "eager_bytes_written": 1000,
            "flops": 2_000_000,
            "bytes_read": 1500,
            "bytes_written": 500,
        },
        "layout": {"conversions": 0, "constants": 3, "constants_bytes": 4000},
        "arena_bytes": 2048,
        "compile_seconds": {"capture": 0.1, "codegen": 0.3},
        "symbols_when_open": ["s0 = args[0].size(0)"],
        "reference": "float64",
        "rounds": 25,
        "columns": {
            "everything": column(),
            "eager": column(eager),
            "eager, one thread": column(eager / 1.5),
            "open sizes": column(1 / 1.01),
            "everything, again": column(1 / 1.005),
        },
        "switches": {switch: switched(ratio) for switch, ratio in ratios.items()},
        "time": {
            "seconds": {"gemm": 0.006, "kernel": 0.002, "run": 0.001},
            "least_seconds": 0.004,
            "least_known_of_seconds": 0.008,
        },
        "one_sample": {"everything": column(), "eager": column(0.25)},
        "bfloat16": {"everything": column(), "eager": column(0.4), "float32": column(0.8)},
        **changes,
    }


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    """One of these rows, or of two by default."""
    found = rows or (
        row("dense", {"fusion": 1.5, "packing": 1.2, "arena": 1.01}),
        row("sparse", {"fusion": 1.04, "packing": 0.8, "arena": 0.99}, eager=0.2),
    )
    return {
        "schema": 1,
        "lampwork": "0.1.0",
        "machine": {
            "cpu": "Some CPU",
            "features": "avx2",
            "cpus": "2",
            "python": "3.11",
            "torch": "2.13",
            "code_for": "avx2",
        },
        "settings": {"threads": 2, "batch": 8, "column_seconds": 0.6, "quick": False},
        "took_seconds": 120.0,
        "switches": [
            {"name": "fusion", "without": "each value has a kernel"},
            {"name": "packing", "without": "weights lie as they lie"},
            {"name": "arena", "without": "no memory is shared"},
        ],
        "architectures": [copy.deepcopy(each) for each in found],
    }
