"""What a backend promises, and which check of the battery holds it to that."""

from __future__ import annotations

from lampwork.records import record


@record
class Promise:
    """`check` is the name of a check of `check_backend`."""

    text: str
    check: str


BACKEND_PROMISES = (
    Promise("`supports` answers every node with Yes, No(reason) or a bool", "protocol"),
    Promise("a No has a reason", "protocol"),
    Promise("`supports` gives one node the same answer each time", "protocol"),
    Promise("`supports` leaves the node as it is", "protocol"),
    Promise("`compile` leaves the graph as it is", "protocol"),
    Promise("`clusters` leaves the graph as it is, and names nodes of it", "protocol"),
    Promise("`cost` gives a number of seconds for every node that it takes", "protocol"),
    Promise("`compile` compiles every graph of nodes that `supports` took", "no fallback"),
    Promise("the function returns all outputs, in order", "right answers"),
    Promise("outputs have the shapes and dtypes of the graph's specs", "right answers"),
    Promise("outputs are eager's, within rounding", "right answers"),
    Promise("options of operators count where they are not the default", "right answers"),
    Promise("the function does not write to its inputs", "right answers"),
    Promise("a call leaves torch's settings as they are: grad mode, threads, default dtype", "right answers"),
    Promise("outputs depend on the inputs of the call, not on the example inputs", "right answers"),
    Promise("it is right whichever of its nodes it is given", "partition legality"),
    Promise("results may share memory, and be read by other parts", "partition legality"),
    Promise("weights that changed are read by the next call", "changed weights"),
    Promise("other sizes are compiled for themselves, 0 and 1 too", "dynamic shapes"),
    Promise("memory of a result is not used again", "results are fresh"),
    Promise("one object compiles many graphs, each of which may be run later", "one object"),
    Promise("a compiled function may run in several threads at once", "threads"),
    Promise("what it keeps for equal graphs is told apart by every literal", "cache keys"),
    Promise("what it keeps for equal graphs is told apart by shapes and dtypes", "cache keys"),
    Promise("what it keeps for equal graphs is told apart by which operand is which", "cache keys"),
    Promise("gradients, where they are asked for, are eager's", "gradients"),
    Promise("arguments may be returned, and one result twice", "aliasing"),
    Promise("it is right where the program writes to its arguments", "mutation"),
    Promise("tensors may have no elements", "empty graphs"),
    Promise("tensors may have no dimensions", "scalars"),
    Promise("it takes no dtype for another", "dtypes"),
    Promise("integers are exact, also those that no float holds", "dtypes"),
    Promise("inputs have the strides of their specs, and an offset", "layouts"),
    Promise("nan, infinities and denormals come out of each operator as eager's", "special numbers"),
    Promise("zeros keep their sign", "special numbers"),
    Promise("denormals are not taken for zero", "special numbers"),
)
