"""ATen graphs: recording, verifying, printing, hashing and running them.

A recorded graph is functional. What its readers may rely on:

* Placeholders are the inputs in the order of `Recorder.input`, then the bound tensors (`meta["bound"]`).
* Every node has `meta["val"]`: a `TensorSpec`, or a tuple of them with a `getitem` node for each result.
* `meta["random"]` marks operators that draw from the generator: they keep their order and are never merged.
* `meta["effect"]` marks what communicates with other processes: likewise, and it is never dropped (`collectives`).
* `meta["operands"]` holds the specs of what an operator was recorded with whose values depend on strides: that draws
  from the generator, looks at memory, or comes from outside torch. Its operands keep their order of elements. Those of
  sorts and medians never get rows of stride 0 that they had not.
* An output that aliases an input is a chain of view nodes on its placeholder, and stays one; outputs that share fresh
  memory are views of one node. A written input appears as an extra output in `Recorded.mutations`; its aliases among
  the outputs are views of the placeholder, which show the new content once it was copied there.
* Python numbers stay literal arguments; literals of one element are `aten.full`, larger ones bound constants.
* Views are view, permute, transpose, t, select, slice, unsqueeze, squeeze, expand, diagonal, unfold, as_strided,
  detach, alias; reshape, split, chunk, unbind, flatten and the like have become these.
* `detach` nodes in a region recorded with grad mode on also stand where a no_grad block cuts the gradient.
"""
