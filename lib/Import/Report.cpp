// What the report and the remark say of an attention that is taken.

#include "Rewrite.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

llvm::json::Object Rewriter::attributes() {
  bool causal = causalTopLeft || causalBottomRight;
  auto orNull = [](std::optional<int64_t> n) {
    return n ? llvm::json::Value(*n) : llvm::json::Value(nullptr);
  };
  const char *mask =
      biases.empty() ? (dynamicMasks.empty() && !staticMask ? "none" : "bool")
                     : "additive";
  const char *empty = emptyRows == EmptyRows::Zero  ? "zero"
                      : emptyRows == EmptyRows::NaN ? "nan"
                                                    : "mean_all";
  std::string element;
  // Values as they are kept: products of half precision are often f32.
  llvm::raw_string_ostream(element)
      << getElementTypeOrSelf(read.peel(m.v).value.getType());
  llvm::json::Object result{
      {"batch", product(batch)},
      {"dtype", element},
      {"heads", product(kv) * product(group)},
      {"kv_heads", product(kv)},
      {"head_dim", product(depth) + (m.second ? product(depth2) : 0)},
      {"value_dim", product(value)},
      {"q_len", product(query)},
      {"kv_len", product(key)},
      {"scale", m.dot.scale},
      {"causal", causal},
      {"mask", mask},
      {"sinks", static_cast<bool>(m.sink)},
      {"empty_rows", empty},
      {"cache", cacheAttributes()}};
  if (!cacheReason.empty())
    result["cache_reason"] = cacheReason;
  if (causal)
    result["alignment"] = causalTopLeft ? "top-left" : "bottom-right";
  if (left || right)
    result["window"] = llvm::json::Array{
        orNull(left), causal ? llvm::json::Value(0) : orNull(right)};
  if (!lengths.empty())
    result["lengths"] = true;
  if (!slopes.empty())
    result["alibi"] = llvm::json::Array(slopes);
  if (m.second)
    result["products"] = 2;
  if (!m.dot.factors.empty())
    result["runtime_scale"] = true;
  if (m.softcap != 0)
    result["softcap"] = m.softcap;
  return result;
}
