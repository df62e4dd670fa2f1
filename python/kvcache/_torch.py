"""PyTorch modules compiled through torch-mlir, their attentions fused.

The module is exported with its parameters and buffers as arguments, so that they are
read where they lie, on each call as they are then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvcache._arrays import from_numpy
from kvcache._graph import ImportedGraph

INSTALL = (
    "pip install torch --index-url https://download.pytorch.org/whl/cpu && pip install torch-mlir packaging"
)


def _import_torch() -> tuple[Any, Any]:
    try:
        import torch
        import torch_mlir.fx as fx
    except ImportError as error:
        raise ImportError(
            f"kvcache.from_torch needs PyTorch and torch-mlir ({error}); install them: {INSTALL}"
        ) from None
    return torch, fx


def _export(torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The exported program in core ops; arguments that are no tensors become part of it."""
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    try:
        with torch.no_grad():
            program = torch.export.export(module, args, kwargs, strict=False)
            program = program.run_decompositions(get_decomposition_table())
    except Exception as error:
        raise ValueError(f"torch.export cannot export {type(module).__name__}: {error}") from error
    graph = program.graph_module.graph
    constant = torch.export.graph_signature.ConstantArgument
    names = {s.arg.name for s in program.graph_signature.input_specs if isinstance(s.arg, constant)}
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name in names and not node.users:
            graph.erase_node(node)
    program.graph_module.recompile()
    return program


def _lower(fx: Any, program: Any, name: str) -> ImportedGraph:
    """Through linalg, else through StableHLO: what the one cannot say the other often can."""
    problems = []
    for kind in ("linalg-on-tensors", "stablehlo"):
        try:
            lowered = fx.stateless_fx_import(program.graph_module, output_type=kind)
            text = lowered.operation.get_asm(enable_debug_info=True)
            return ImportedGraph(text.encode(), name, "main")
        except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
            problems.append(f"through {kind}: {error}")
    raise ValueError(f"{name} cannot be compiled\n" + "\n".join(problems))


class TorchFunction:
    """A module of PyTorch as a function of tensors.

    Takes what the module takes, in the shapes and dtypes it was made with, and returns
    tensors in the module's structure; buffers that the module changes (a KV cache) are
    changed. No gradients: call it under `torch.no_grad()` or `torch.inference_mode()`.
    `specs`, `report`: as of `kvcache.import_mlir`.
    """

    def __init__(self, torch: Any, fx: Any, module: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        self._torch = torch
        self._module = module
        self._program = _export(torch, module, args, kwargs)
        self.__name__ = type(module).__name__
        self._graph = _lower(fx, self._program, self.__name__)
        self.report, self.specs = self._graph.report, self._graph.specs
        signature = self._program.module_call_graph[0].signature
        self._in_spec, self._out_spec = signature.in_spec, signature.out_spec

    def __iter__(self) -> Iterator[Any]:
        return iter((self.specs, self))

    def __repr__(self) -> str:
        return f"<kvcache.TorchFunction '{self.__name__}', {len(self.specs)} attentions fused>"

    def _tensors(self, leaves: Sequence[Any]) -> list[Any]:
        """Arguments of the graph, in its order."""
        graph_signature = self._torch.export.graph_signature
        kinds, given = graph_signature.InputKind, iter(leaves)
        tensors = []
        for spec in self._program.graph_signature.input_specs:
            if spec.kind == kinds.PARAMETER:
                tensors.append(self._module.get_parameter(spec.target))
            elif spec.kind == kinds.BUFFER:
                tensors.append(self._module.get_buffer(spec.target))
            elif spec.kind == kinds.CONSTANT_TENSOR:
                tensors.append(self._program.constants[spec.target])
            elif spec.kind != kinds.USER_INPUT:
                raise ValueError(f"{self.__name__} takes a {spec.kind.name}, which is not supported")
            elif isinstance(spec.arg, graph_signature.ConstantArgument):
                value = next(given)
                if value != spec.arg.value:
                    raise ValueError(
                        f"{spec.arg.name} is {value!r}, but the graph was made for {spec.arg.value!r}"
                    )
            else:
                tensors.append(next(given))
        return tensors

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        torch = self._torch
        leaves, in_spec = torch.utils._pytree.tree_flatten((args, kwargs))
        if in_spec != self._in_spec:
            raise ValueError(
                f"{self.__name__} was called with {in_spec.num_leaves} arguments in another structure "
                f"than the {self._in_spec.num_leaves} it was made with"
            )
        tensors = self._tensors(leaves)
        if torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors):
            raise ValueError(
                f"{self.__name__} computes no gradients: call it under torch.no_grad(), or make its "
                "arguments and parameters require none"
            )
        results = [from_numpy(r, "torch") for r in self._graph.run_numpy(tensors)]
        return torch.utils._pytree.tree_unflatten(self._outputs(results, leaves), self._out_spec)

    def _outputs(self, results: list[Any], leaves: Sequence[Any]) -> list[Any]:
        """Writes what the module changes, and returns what it returns."""
        graph_signature = self._torch.export.graph_signature
        kinds, outputs, names = graph_signature.OutputKind, [], None
        computed = iter(results)
        for spec in self._program.graph_signature.output_specs:
            if isinstance(spec.arg, graph_signature.ConstantArgument):
                outputs.append(spec.arg.value)
                continue
            value = next(computed)
            if spec.kind == kinds.BUFFER_MUTATION:
                self._module.get_buffer(spec.target).copy_(value)
            elif spec.kind == kinds.USER_INPUT_MUTATION:
                names = names or self._program.graph_signature.user_inputs
                leaves[list(names).index(spec.target)].copy_(value)
            else:
                outputs.append(value)
        return outputs


def from_torch(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> TorchFunction:
    """`module` (in eval mode) compiled for this CPU, its recognised attentions fused.

    `args` and `kwargs` are example inputs whose shapes and dtypes the result is for;
    nothing is computed with them. Parameters are read in place on each call.
    ImportError names the line that installs PyTorch and torch-mlir.
    """
    torch, fx = _import_torch()
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"module is a {type(module).__name__}, expected a torch.nn.Module")
    if any(m.training for m in module.modules()):
        raise ValueError(f"{type(module).__name__} is in training mode; call its eval() first")
    if isinstance(args, torch.Tensor) or not isinstance(args, Sequence):
        raise ValueError(f"args is a {type(args).__name__}, expected a tuple of example inputs")
    return TorchFunction(torch, fx, module, tuple(args), dict(kwargs or {}))
