//===- KVTileDialect.td - The schedule level ----------------*- tablegen -*-===//
#ifndef KVCACHE_DIALECT_KVTILE_DIALECT_TD
#define KVCACHE_DIALECT_KVTILE_DIALECT_TD

include "mlir/IR/OpBase.td"

def KVTile_Dialect : Dialect {
  let name = "kvtile";
  let cppNamespace = "::kvcache::tile";
  let summary = "Attention over a paged cache as an explicit loop over tiles";
  let description = [{
    One `kvtile.kernel` computes one work item of `attend`
    (kvcache/ABI/KernelABI.h): one query row, one key/value head, one chunk of
    at most `q_pack` query heads, one split of the sequence's pages. What is
    stored how follows from the kernel's `#kvtile.spec`; how the work is cut
    from its `#kvtile.schedule`.

    Values are ordinary ranked tensors with a `#kvtile.layout` encoding, so
    `arith` and `math` work on them unchanged. A target lowers each tensor to as
    many values (or as much scratch memory) per thread as it likes; the encoding
    says which role a tensor plays, hence how its elements are spread.

    With N = q_pack, T = tile_tokens, D = head_dim, V = value_dim:

    | layout  | tensor       | holds                                   |
    |---------|--------------|-----------------------------------------|
    | `query` | N x D, f32   | the chunk's queries, missing heads zero |
    | `acc`   | T x N        | scores, probabilities, masks of a tile  |
    | `rows`  | N, f32       | statistics per head                     |
    | `out`   | V x N, f32   | the output accumulator                  |
  }];
  let useDefaultAttributePrinterParser = 1;
  let useDefaultTypePrinterParser = 1;
  let extraClassDeclaration = [{ void registerAttributes(); }];
  let dependentDialects = ["::mlir::arith::ArithDialect",
                           "::mlir::math::MathDialect"];
}

#endif // KVCACHE_DIALECT_KVTILE_DIALECT_TD
