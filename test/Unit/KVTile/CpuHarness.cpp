//===- CpuHarness.cpp - Random caches and a float64 attention -------------===//

#include "CpuHarness.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace kvcache;
using namespace kvcache::test;

CompiledKernel test::compileKernel(const KernelSpec &spec, CpuTier tier,
                                   const std::string &schedule) {
  CompiledKernel kernel;
  kernel.spec = spec;
  CpuOptions options;
  options.tier = tier;
  options.attendOnly = true;
  options.schedule = schedule;
  auto code = compileCpu(spec, options);
  if (!code) {
    kernel.error = llvm::toString(code.takeError());
    return kernel;
  }
  kernel.code = std::move(*code);
  auto jit = x86::Jit::createFromObject(kernel.code.object);
  if (!jit) {
    kernel.error = llvm::toString(jit.takeError());
    return kernel;
  }
  kernel.jit = std::move(*jit);
  kernel.attend = reinterpret_cast<KvAttendFn>(
      llvm::cantFail(kernel.jit->lookup("attend")));
  kernel.merge =
      reinterpret_cast<KvAttendFn>(llvm::cantFail(kernel.jit->lookup("merge")));
  return kernel;
}

double test::relativeError(const float *a, const float *b, int64_t n) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    difference += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    norm += double(b[i]) * b[i];
  }
  if (difference == 0)
    return 0;
  return std::sqrt(difference / norm);
}

//===----------------------------------------------------------------------===//
// Filling
//===----------------------------------------------------------------------===//

float RandomCache::storeElement(Element e, float x, uint8_t *at) const {
  uint32_t bits = codec::toElementBits(e, x);
  std::memcpy(at, &bits, bitsOf(e) / 8);
  return codec::fromElementBits(e, bits);
}

static float loadElement(Element e, const uint8_t *at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, bitsOf(e) / 8);
  return codec::fromElementBits(e, bits);
}

/// Random codes, scales and zeros such that decoded values are of order 1 with
/// an offset per channel, as real keys have.
void RandomCache::fillSealed(int64_t page) {
  std::normal_distribution<float> normal;
  for (int64_t head = 0; head < spec.kvHeads; ++head) {
    uint8_t *record =
        sealedPool.get() + (page * spec.kvHeads + head) * image.recordBytes();
    for (const TensorImage *t : {&image.key, &image.value}) {
      uint8_t *codes =
          record + image.offset(t->isValue ? Section::VCodes : Section::KCodes);
      uint8_t *scales = record + image.offset(t->isValue ? Section::VScales
                                                         : Section::KScales);
      uint8_t *zeros =
          record + image.offset(t->isValue ? Section::VZeros : Section::KZeros);
      const Encoding &e = t->encoding;
      if (isFloat(e.element)) {
        for (int64_t tok = 0; tok < t->page; ++tok)
          for (int64_t ch = 0; ch < t->channels; ++ch)
            storeElement(e.element, normal(rng),
                         codes + t->code<int64_t>(tok, ch).byte);
        continue;
      }
      for (int64_t i = 0; i < t->codeBytes(); ++i)
        codes[i] = uint8_t(rng());
      Element stored = codec::elementOf(e.scaleType);
      float levels = float(1 << t->bits());
      for (int64_t i = 0; i < t->scaleCount(); ++i) {
        float s = (0.5f + std::abs(normal(rng))) * 3 / levels;
        storeElement(stored, s, scales + i * bytesOf(e.scaleType));
        if (e.asymmetric)
          storeElement(stored, -s * levels / 2 + normal(rng),
                       zeros + i * bytesOf(e.scaleType));
      }
    }
  }
}

void RandomCache::fillOpen(int64_t page) {
  std::normal_distribution<float> normal;
  int64_t bytes = openRecordBytes(spec.dtype, spec.format.page, spec.headDim,
                                  spec.valueDim);
  int64_t elements = spec.format.page * (spec.headDim + spec.valueDim);
  for (int64_t head = 0; head < spec.kvHeads; ++head)
    for (int64_t i = 0; i < elements; ++i)
      storeElement(spec.dtype, normal(rng),
                   openPool.get() + (page * spec.kvHeads + head) * bytes +
                       i * bitsOf(spec.dtype) / 8);
}

RandomCache::RandomCache(const KernelSpec &spec, std::vector<int64_t> lens,
                         std::vector<int64_t> qLens, uint32_t seed)
    : spec(spec), lengths(std::move(lens)), rng(seed) {
  const Format &f = spec.format;
  image = std::get<PageImage>(
      PageImage::create(f, spec.headDim, spec.valueDim, ImageFamily::X86_64));
  int64_t total = 0;
  for (int64_t n : lengths) {
    int64_t pages = (n + f.page - 1) / f.page;
    tableStride = std::max(tableStride, pages);
    total += pages;
    // A page is sealed as soon as it is full and older than the newest R.
    int64_t full = std::max<int64_t>(n - f.recent, 0) / f.page;
    sealed.push_back(int32_t(std::max<int64_t>(full - f.sinkPages(), 0)));
    lengths32.push_back(int32_t(n));
  }
  sealedPool = Bytes(total * spec.kvHeads * image.recordBytes());
  openPool =
      Bytes(total * spec.kvHeads *
            openRecordBytes(spec.dtype, f.page, spec.headDim, spec.valueDim));
  std::vector<int32_t> order;
  for (int64_t p = 0; p < total; ++p) {
    fillSealed(p);
    fillOpen(p);
    order.push_back(int32_t(p));
  }
  std::shuffle(order.begin(), order.end(), rng);
  sealedTable.assign(lengths.size() * std::size_t(tableStride), -1);
  openTable = sealedTable;
  std::size_t next = 0;
  indptr.push_back(0);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    for (int64_t p = 0; p * f.page < lengths[s]; ++p) {
      auto &table = isSealed(int64_t(s), p) ? sealedTable : openTable;
      table[s * std::size_t(tableStride) + std::size_t(p)] = order[next++];
    }
    indptr.push_back(int32_t(indptr.back() + qLens[s]));
    rowSeq.insert(rowSeq.end(), std::size_t(qLens[s]), int32_t(s));
  }
  std::normal_distribution<float> normal;
  int64_t elements = rows() * spec.qHeads * spec.headDim;
  query = Bytes(elements * 4);
  for (int64_t i = 0; i < elements; ++i)
    queryValues.push_back(storeElement(
        spec.dtype, normal(rng), query.get() + i * bitsOf(spec.dtype) / 8));
  for (int64_t h = 0; h < spec.qHeads; ++h)
    slopes.push_back(std::exp2(-0.5f * float(h + 1)));
  for (int64_t h = 0; h < spec.kvHeads; ++h) {
    kScale.push_back(0.01f * float(h + 1));
    vScale.push_back(0.02f * float(h + 1));
  }
}

bool RandomCache::isSealed(int64_t seq, int64_t page) const {
  int64_t first = std::min<int64_t>(
      spec.format.sinkPages(),
      (lengths[std::size_t(seq)] + spec.format.page - 1) / spec.format.page);
  return page >= first && page < first + sealed[std::size_t(seq)];
}

void RandomCache::poison() {
  // Tokens past the length, in open pages.
  int64_t page = spec.format.page, esize = bitsOf(spec.dtype) / 8;
  int64_t bytes =
      openRecordBytes(spec.dtype, page, spec.headDim, spec.valueDim);
  for (std::size_t s = 0; s < lengths.size(); ++s)
    for (int64_t tok = lengths[s]; tok % page; ++tok) {
      int64_t p = tok / page;
      int32_t entry = openTable[s * std::size_t(tableStride) + std::size_t(p)];
      for (int64_t head = 0; head < spec.kvHeads; ++head) {
        uint8_t *record =
            openPool.get() + (entry * spec.kvHeads + head) * bytes;
        std::memset(record + tok % page * spec.headDim * esize, 0xff,
                    std::size_t(spec.headDim * esize));
        std::memset(
            record + (page * spec.headDim + tok % page * spec.valueDim) * esize,
            0xff, std::size_t(spec.valueDim * esize));
      }
    }
}

//===----------------------------------------------------------------------===//
// Running
//===----------------------------------------------------------------------===//

Result RandomCache::run(const CompiledKernel &kernel) const {
  Result result;
  int64_t maxSplits = 1;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    int64_t split = kernel.code.splitTokens ? kernel.code.splitTokens
                                            : kvcache_split_tokens(lengths[s]);
    maxSplits = std::max(
        maxSplits, kvcache_num_splits(lengths[s], sealed[s], spec.format.page,
                                      spec.format.sinkPages(), split));
  }
  int64_t outputs = rows() * spec.qHeads * spec.valueDim;
  Bytes out(outputs * 4),
      workspace(kvcache_workspace_bytes(rows(), spec.qHeads, maxSplits,
                                        spec.valueDim, 0));
  result.lse.assign(std::size_t(rows() * spec.qHeads), NAN);
  KvAttendArgs args{};
  args.q = const_cast<uint8_t *>(query.get());
  args.row_seq = const_cast<int32_t *>(rowSeq.data());
  args.q_indptr = const_cast<int32_t *>(indptr.data());
  args.sealed_table = const_cast<int32_t *>(sealedTable.data());
  args.open_table = const_cast<int32_t *>(openTable.data());
  args.table_seq_stride = tableStride;
  args.sealed_pages = const_cast<int32_t *>(sealed.data());
  args.lengths = const_cast<int32_t *>(lengths32.data());
  args.sealed_pool = const_cast<uint8_t *>(sealedPool.get());
  args.open_pool = const_cast<uint8_t *>(openPool.get());
  args.k_scale = const_cast<float *>(kScale.data());
  args.v_scale = const_cast<float *>(vScale.data());
  args.slopes = const_cast<float *>(slopes.data());
  args.out = out.get();
  args.lse = result.lse.data();
  args.workspace = workspace.get();
  args.row_end = rows();
  args.max_splits = maxSplits;
  int64_t chunks = (spec.group() + kernel.code.qPack - 1) / kernel.code.qPack;
  kernel.attend(&args, 0, rows() * spec.kvHeads * chunks * maxSplits);
  kernel.merge(&args, 0, rows() * spec.qHeads);
  for (int64_t i = 0; i < outputs; ++i)
    result.out.push_back(
        loadElement(spec.dtype, out.get() + i * bitsOf(spec.dtype) / 8));
  return result;
}

Result RandomCache::runSequence(const CompiledKernel &kernel,
                                int64_t seq) const {
  // The same sequence alone: its row of the tables, its rows of the queries.
  RandomCache one(*this);
  auto s = std::size_t(seq);
  one.lengths = {lengths[s]};
  one.lengths32 = {lengths32[s]};
  one.sealed = {sealed[s]};
  one.indptr = {0, indptr[s + 1] - indptr[s]};
  one.rowSeq.assign(std::size_t(one.rows()), 0);
  auto rowOf = [&](const std::vector<int32_t> &table) {
    auto begin = table.begin() + seq * tableStride;
    return std::vector<int32_t>(begin, begin + tableStride);
  };
  one.sealedTable = rowOf(sealedTable);
  one.openTable = rowOf(openTable);
  int64_t size = spec.qHeads * spec.headDim * bitsOf(spec.dtype) / 8;
  one.sealedPool = sealedPool;
  std::memmove(one.query.get(), query.get() + indptr[s] * size,
               std::size_t(one.rows() * size));
  return one.run(kernel);
}

//===----------------------------------------------------------------------===//
// Reference
//===----------------------------------------------------------------------===//

float RandomCache::decoded(const TensorImage &t, const uint8_t *record,
                           int64_t tok, int64_t ch, int64_t head) const {
  const Encoding &e = t.encoding;
  const uint8_t *codes =
      record + image.offset(t.isValue ? Section::VCodes : Section::KCodes);
  BitAddress<int64_t> at = t.code<int64_t>(tok, ch);
  if (isFloat(e.element))
    return loadElement(e.element, codes + at.byte);
  uint32_t code = (codes[at.byte] >> at.shift) & ((1u << t.bits()) - 1);
  float scale = (t.isValue ? vScale : kScale)[std::size_t(head)], zero = 0;
  if (e.scale != ScaleKind::Tensor) {
    int64_t i = t.scaleIndex<int64_t>(tok, ch) * bytesOf(e.scaleType);
    Element stored = codec::elementOf(e.scaleType);
    scale = loadElement(stored, record + i +
                                    image.offset(t.isValue ? Section::VScales
                                                           : Section::KScales));
    if (e.asymmetric)
      zero = loadElement(stored, record + i +
                                     image.offset(t.isValue ? Section::VZeros
                                                            : Section::KZeros));
  }
  return codec::decode<float>(e, code, scale, zero);
}

float RandomCache::element(int64_t seq, int64_t head, int64_t tok, int64_t ch,
                           bool value) const {
  int64_t page = spec.format.page, p = tok / page;
  auto entry = std::size_t(seq * tableStride + p);
  if (isSealed(seq, p)) {
    const uint8_t *record =
        sealedPool.get() +
        (sealedTable[entry] * spec.kvHeads + head) * image.recordBytes();
    return decoded(value ? image.value : image.key, record, tok % page, ch,
                   head);
  }
  int64_t bytes =
      openRecordBytes(spec.dtype, page, spec.headDim, spec.valueDim);
  int64_t i = value ? page * spec.headDim + tok % page * spec.valueDim + ch
                    : tok % page * spec.headDim + ch;
  return loadElement(spec.dtype,
                     openPool.get() +
                         (openTable[entry] * spec.kvHeads + head) * bytes +
                         i * bitsOf(spec.dtype) / 8);
}

Result RandomCache::reference() const {
  Result result;
  auto d = spec.headDim, v = spec.valueDim;
  result.out.assign(std::size_t(rows() * spec.qHeads * v), 0);
  result.lse.assign(std::size_t(rows() * spec.qHeads), -INFINITY);
  for (std::size_t s = 0; s < lengths.size(); ++s)
    for (int64_t head = 0; head < spec.kvHeads; ++head) {
      int64_t n = lengths[s];
      std::vector<double> k, x;
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t c = 0; c < d; ++c)
          k.push_back(element(int64_t(s), head, t, c, false));
        for (int64_t c = 0; c < v; ++c)
          x.push_back(element(int64_t(s), head, t, c, true));
      }
      for (int64_t r = indptr[s]; r < indptr[s + 1]; ++r)
        for (int64_t g = 0; g < spec.group(); ++g) {
          int64_t h = head * spec.group() + g, i = n - indptr[s + 1] + r;
          std::vector<double> score(std::size_t(n), -INFINITY);
          double max = -INFINITY, sum = 0;
          for (int64_t j = 0; j < n && i >= 0; ++j) {
            if ((spec.causal && j > i) ||
                (spec.windowLeft && j < i - *spec.windowLeft) ||
                (spec.windowRight && j > i + *spec.windowRight))
              continue;
            double dot = 0;
            for (int64_t c = 0; c < d; ++c)
              dot += k[std::size_t(j * d + c)] *
                     queryValues[std::size_t((r * spec.qHeads + h) * d + c)];
            dot *= spec.softmaxScale();
            if (spec.softcap)
              dot = *spec.softcap * std::tanh(dot / *spec.softcap);
            if (spec.alibi)
              dot += slope(h) * double(j - i);
            score[std::size_t(j)] = dot;
            max = std::max(max, dot);
          }
          if (max == -INFINITY)
            continue;
          std::vector<double> o(std::size_t(v), 0);
          for (int64_t j = 0; j < n; ++j) {
            double p = std::exp(score[std::size_t(j)] - max);
            sum += p;
            for (int64_t c = 0; c < v; ++c)
              o[std::size_t(c)] += p * x[std::size_t(j * v + c)];
          }
          auto at = std::size_t(r * spec.qHeads + h);
          result.lse[at] = float(max + std::log(sum));
          for (int64_t c = 0; c < v; ++c)
            result.out[at * std::size_t(v) + std::size_t(c)] =
                float(o[std::size_t(c)] / sum);
        }
    }
  return result;
}
