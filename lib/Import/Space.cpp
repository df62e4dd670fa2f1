// Index variables and index expressions. See Space.h.

#include "Space.h"

#include "llvm/ADT/STLExtras.h"

using namespace kvcache::import;

VarId Space::newVar(int64_t extent) {
  vars.push_back({extent});
  return vars.size() - 1;
}

Idx Space::newIdx(int64_t extent) {
  if (extent == 1)
    return {};
  // A size that is not known has room for any position.
  if (extent < 0)
    extent = int64_t(1) << 40;
  return {{{newVar(extent), 1}}, 0};
}

bool Space::split(VarId var, int64_t lowExtent) {
  int64_t extent = vars[var].extent;
  if (vars[var].split || lowExtent <= 1 || lowExtent >= extent ||
      extent % lowExtent != 0)
    return false;
  VarId high = newVar(extent / lowExtent), low = newVar(lowExtent);
  vars[var].split = true;
  vars[var].high = high;
  vars[var].low = low;
  return true;
}

llvm::SmallVector<VarId, 2> Space::digits(VarId var) const {
  if (!vars[var].split)
    return {var};
  llvm::SmallVector<VarId, 2> result = digits(vars[var].high);
  llvm::append_range(result, digits(vars[var].low));
  return result;
}

Idx Space::resolve(const Idx &idx) const {
  Idx result;
  result.offset = idx.offset;
  auto expand = [&](auto &self, VarId var, int64_t stride) -> void {
    if (vars[var].split) {
      self(self, vars[var].high, stride * vars[vars[var].low].extent);
      self(self, vars[var].low, stride);
    } else if (vars[var].extent != 1 && stride != 0) {
      result.terms.push_back({var, stride});
    }
  };
  for (const Term &term : idx.terms)
    expand(expand, term.var, term.stride);
  // The same digit twice (i + i) becomes one term.
  llvm::sort(result.terms, [](const Term &a, const Term &b) {
    return a.stride != b.stride ? a.stride > b.stride : a.var < b.var;
  });
  for (unsigned i = 0; i < result.terms.size(); ++i)
    for (unsigned j = i + 1; j < result.terms.size();)
      if (result.terms[i].var == result.terms[j].var) {
        result.terms[i].stride += result.terms[j].stride;
        result.terms.erase(result.terms.begin() + j);
      } else {
        ++j;
      }
  llvm::erase_if(result.terms, [](const Term &t) { return t.stride == 0; });
  return result;
}

void Space::collectDigits(const Idx &idx,
                          llvm::SmallVectorImpl<VarId> &out) const {
  for (const Term &term : resolve(idx).terms)
    if (!llvm::is_contained(out, term.var))
      out.push_back(term.var);
}

Idx Space::affine(const Idx &idx, int64_t scale, int64_t offset) const {
  Idx result = idx;
  for (Term &term : result.terms)
    term.stride *= scale;
  result.offset = idx.offset * scale + offset;
  return result;
}

Idx Space::add(const Idx &a, const Idx &b) const {
  Idx result = a;
  llvm::append_range(result.terms, b.terms);
  result.offset += b.offset;
  return result;
}

std::pair<int64_t, int64_t> Space::range(const Idx &idx) const {
  int64_t low = idx.offset, high = idx.offset;
  for (const Term &term : resolve(idx).terms) {
    int64_t last = term.stride * (vars[term.var].extent - 1);
    (last < 0 ? low : high) += last;
  }
  return {low, high};
}

std::optional<Idxs> Space::delinearize(const Idx &idx,
                                       llvm::ArrayRef<int64_t> shape) {
  if (llvm::is_contained(shape, 0))
    return std::nullopt;
  llvm::SmallVector<int64_t> stride(shape.size(), 1);
  for (int d = static_cast<int>(shape.size()) - 2; d >= 0; --d)
    stride[d] = stride[d + 1] * shape[d + 1];
  Idxs result(shape.size());
  int64_t rest = idx.offset;
  if (rest < 0)
    return std::nullopt;
  for (unsigned d = 0; d < shape.size(); ++d) {
    result[d].offset = rest / stride[d];
    rest %= stride[d];
  }
  Idx flat = resolve(idx);
  for (unsigned t = 0; t < flat.terms.size(); ++t) {
    Term term = flat.terms[t];
    if (term.stride < 0)
      return std::nullopt;
    int64_t reach = term.stride * vars[term.var].extent;
    bool placed = false;
    for (unsigned d = 0; d < shape.size() && !placed; ++d) {
      if (term.stride % stride[d] != 0 || term.stride >= stride[d] * shape[d] ||
          shape[d] == 1)
        continue;
      if (reach > stride[d] * shape[d]) {
        // Reaches into the dimension above: split there and start over.
        if (!split(term.var, stride[d] * shape[d] / term.stride) ||
            (stride[d] * shape[d]) % term.stride != 0)
          return std::nullopt;
        return delinearize(idx, shape);
      }
      result[d].terms.push_back({term.var, term.stride / stride[d]});
      placed = true;
    }
    if (!placed)
      return std::nullopt;
  }
  for (auto [dim, size] : llvm::zip(result, shape))
    if (range(dim).second >= size)
      return std::nullopt;
  return result;
}

bool Space::equal(llvm::ArrayRef<Idx> a, llvm::ArrayRef<Idx> b) const {
  return a.size() == b.size() && llvm::all_of(llvm::zip(a, b), [&](auto pair) {
           return equal(std::get<0>(pair), std::get<1>(pair));
         });
}
