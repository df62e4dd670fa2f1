// Whether the arrays behind keys and values make a cache: which digits of the
// positions are pages, tokens and channels of them.

#include "Rewrite.h"

#include "llvm/ADT/ScopeExit.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::import;

/// Pages that a format can name are powers of two up to this.
static constexpr int64_t kMaxPage = 256;

static bool has(ArrayRef<VarId> digits, VarId digit) {
  return llvm::is_contained(digits, digit);
}

bool Rewriter::refuseCache(const llvm::Twine &why) {
  if (cacheReason.empty())
    cacheReason = why.str();
  return false;
}

/// Which digits of the key are columns of the page table, and which tokens of
/// a page.
bool Rewriter::planPages() {
  if (cache->tables.tables.empty()) {
    pageTokens = key;
    return true;
  }
  if (cache->tables.tables.size() > 1)
    return refuseCache("keys, values or their scales are gathered with "
                       "different tables");
  Digits entry;
  if (!collect(cache->tables.tables.front().entry, entry))
    return refuseCache("the page table is computed in a way that cannot be "
                       "repeated");
  refresh(entry);
  refreshAll();
  for (VarId d : entry)
    if (!has(batch, d) && !has(kv, d) && !has(key, d))
      return refuseCache("the page table depends on more than sequence, head "
                         "and key");
  for (VarId d : key)
    (has(entry, d) ? columns : pageTokens).push_back(d);
  for (auto [i, d] : llvm::enumerate(columns))
    if (key[i] != d)
      return refuseCache("the tokens of a page are not neighbours");
  return splitPages();
}

/// Pages of other sizes become several of a size that a format has.
bool Rewriter::splitPages() {
  int64_t page = product(pageTokens), size = 1;
  while (size < kMaxPage && page % (size * 2) == 0)
    size *= 2;
  if (size == page)
    return true;
  Idx token;
  for (VarId d : pageTokens)
    token = space.add(space.affine(token, space.extent(d)), Idx{{{d, 1}}, 0});
  if (!space.delinearize(token, {page / size, size}))
    return refuseCache("pages of " + llvm::Twine(page) +
                       " tokens cannot be divided");
  refresh(pageTokens);
  refreshAll();
  while (product(pageTokens) > size) {
    subPages.push_back(pageTokens.front());
    pageTokens.erase(pageTokens.begin());
  }
  return true;
}

/// Codes in one container are neighbours: along the channels their order is
/// free, so the digit that selects one comes last.
bool Rewriter::planSlot(CachedSide &side, Digits &channels) {
  if (!side.slot)
    return true;
  VarId slot = *side.slot;
  if (space.isSplit(slot))
    return refuseCache("the codes of one container are not in one dimension");
  if (has(channels, slot)) {
    llvm::erase(channels, slot);
    channels.push_back(slot);
    return true;
  }
  if (!pageTokens.empty() && pageTokens.back() == slot)
    return true;
  return refuseCache("the codes of one container are neither channels nor "
                     "neighbouring tokens");
}

Rewriter::Groups Rewriter::groupsOf(const Digits &channels) const {
  Digits pages = batch;
  if (!cache->tables.tables.empty()) {
    pages = {cache->tables.tables.front().page};
    llvm::append_range(pages, subPages);
  }
  return {pages, kv, pageTokens, channels};
}

/// Scales and zeros must follow the positions of the codes.
bool Rewriter::planParams(const CachedSide &side, const Groups &groups) {
  std::vector<Product> products = side.zeros;
  products.push_back(side.scale);
  for (const Product &product : products)
    for (const Product::Factor &factor : product.factors) {
      Digits used;
      if (!collect(factor.value, used))
        return refuseCache("the scales are computed in a way that cannot be "
                           "repeated");
      refresh(used);
      for (VarId d : used)
        if (llvm::none_of(groups, [&](const Digits &g) { return has(g, d); }))
          return refuseCache("the scales do not follow the pages of the codes");
    }
  if (isInteger(side.element) && side.isSigned && !side.zeros.empty())
    return refuseCache("signed codes with a zero point");
  if (side.width < floatWidth(m.root.getType()) &&
      !isRoundedByUsers(m.root, side.width))
    return refuseCache("decoded values are rounded to " +
                       llvm::Twine(side.width) + " bits, the result is not");
  return true;
}

bool Rewriter::planSide(const CachedSide &side, const Digits &channels) {
  Groups groups = groupsOf(channels);
  Digits used, wanted;
  for (const Idx &idx : side.array.at)
    space.collectDigits(idx, used);
  for (const Digits &group : groups)
    for (VarId d : group)
      if (d != side.slot && space.extent(d) != 1)
        wanted.push_back(d);
  for (VarId d : used)
    if (!has(wanted, d))
      return refuseCache("the array has positions that its codes do not have");
  if (used.size() != wanted.size())
    return refuseCache("heads, sequences or tokens share entries of the array");
  // Each dimension of the array must be a product of digits.
  for (const Idx &idx : side.array.at) {
    Idx flat = space.resolve(idx);
    for (unsigned i = 0; i + 1 < flat.terms.size(); ++i)
      if (flat.terms[i].stride !=
          flat.terms[i + 1].stride * space.extent(flat.terms[i + 1].var))
        return refuseCache("the array is read with overlaps or gaps");
    if (!flat.terms.empty() && flat.terms.back().stride < 0)
      return refuseCache("the array is read backwards");
  }
  return planParams(side, groups);
}

void Rewriter::planCache() {
  cache.emplace(space, read);
  read.indices = &cache->tables;
  llvm::scope_exit done([&] { read.indices = nullptr; });
  bool key = !m.second && cache->match(m.dot.k, keySide);
  if (!key)
    cacheReason =
        m.second ? "keys are channels of two arrays" : "keys: " + cache->reason;
  cache->reason.clear();
  bool value = cache->match(m.v, valueSide);
  if (!value)
    refuseCache("values: " + cache->reason);
  bool isSeen = cache->sawCodes || keySide.isDecoded || valueSide.isDecoded ||
                !cache->tables.tables.empty();
  refreshAll();
  // On a cache, queries are the newest tokens: there must be room for them.
  if (isSeen && product(query) > product(this->key) && !causalTopLeft)
    key = refuseCache("more queries than keys");
  cached = isSeen && key && value && planPages() && planSlot(keySide, depth) &&
           planSlot(valueSide, this->value) && planSide(keySide, depth) &&
           planSide(valueSide, this->value);
  if (cached && (keySide.valid || valueSide.valid))
    cached = keySide.valid && valueSide.valid &&
                     read.same(keySide.valid, valueSide.valid)
                 ? true
                 : refuseCache("pages out of range read as NaN on one side "
                               "only");
  if (cached || !isSeen)
    cacheReason.clear();
}
