"""ATen graphs as ONNX models: what the backends `onnxruntime` and `openvino` are made of.

`convert.py` makes the model, `rules_*.py` has one rule per ATen operator, `boundary.py` keeps views and strides of the
results as eager has them, `part.py` is the callable around a runtime's session.
"""
