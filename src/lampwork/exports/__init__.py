"""What Lampwork compiled, in formats that other tools read.

`door.py` is `lampwork.export`. `pieces.py` makes of a region, or of a module in it, what runs by itself: `program.py`
writes that as a program of `torch.export`, `onnx_model.py` as an ONNX model. `drawing.py` says what there is to draw:
`model_explorer.py` and `dot.py` write that. `trace.py` has the records of torch's structured trace.
"""

from __future__ import annotations

from lampwork.exports.door import Exported, export

__all__ = ["Exported", "export"]
