//===- decode.cpp - Decode benchmark on the CPU ---------------------------===//
//
// usage: bench-decode [--format=F]... [--tokens=N] [--layers=N] [--threads=N]
//                     [--schedule=KEY=V,...] [--cpu=TIER] [--json]
//
// One decode step of one layer: 32 query heads, 8 kv heads, d = 128, 8192
// tokens. Caches of many layers are visited in turn, so that none is in a
// processor cache when its turn comes. The yardstick is a plain vector read of
// the bytes that the f16 cache holds, in the same process, on as many threads.
//
//===----------------------------------------------------------------------===//

#include "kvcache/ABI/KernelABI.h"
#include "kvcache/Compiler/Compiler.h"
#include "kvcache/Format/Image.h"
#include "kvcache/Target/X86/Jit.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <immintrin.h>
#include <memory>
#include <sys/mman.h>
#include <thread>
#include <vector>

using namespace kvcache;

namespace {

struct Options {
  std::vector<std::string> formats;
  int64_t tokens = 8192, layers = 0, threads = 1, qHeads = 32, kvHeads = 8,
          d = 128;
  std::string schedule;
  CpuTier tier = CpuTier::AVX512;
  bool writeObject = false;
};

/// Set by --cpu-time: this thread's own time, for a machine that is shared.
bool cpuTime = false;

double now() {
  if (cpuTime) {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  }
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Big zeroed memory with 2 MiB pages where the system gives them.
uint8_t *allocate(int64_t bytes) {
  void *p = mmap(nullptr, std::size_t(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(p, std::size_t(bytes), MADV_HUGEPAGE);
  return static_cast<uint8_t *>(p);
}

/// Every 16-bit word a normal f16 of moderate size, whatever it stands for.
void fill(uint8_t *p, int64_t bytes) {
  uint64_t x = 88172645463325252ull;
  auto *words = reinterpret_cast<uint64_t *>(p);
  for (int64_t i = 0; i < bytes / 8; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    words[i] = (x & 0x8fff8fff8fff8fffull) | 0x2000200020002000ull;
  }
}

__attribute__((target("avx512f"), noinline)) uint64_t
plainRead(const uint8_t *p, int64_t bytes) {
  __m512i a[8];
  for (auto &x : a)
    x = _mm512_setzero_si512();
  for (int64_t i = 0; i < bytes; i += 512)
    for (int j = 0; j < 8; ++j) {
      _mm_prefetch(reinterpret_cast<const char *>(p + i + j * 64 + 4096),
                   _MM_HINT_T0);
      a[j] = _mm512_xor_si512(a[j], _mm512_load_si512(p + i + j * 64));
    }
  for (int j = 1; j < 8; ++j)
    a[0] = _mm512_xor_si512(a[0], a[j]);
  return uint64_t(_mm512_reduce_add_epi64(a[0]));
}

/// Runs part(i) on each of n threads, over and over, with spinning barriers.
class Team {
public:
  explicit Team(int64_t n) : n(n) {
    for (int64_t i = 1; i < n; ++i)
      threads.emplace_back([this, i] { work(i); });
  }
  ~Team() {
    stop = true;
    ++generation;
    for (auto &t : threads)
      t.join();
  }
  template <typename F>
  void run(F f) {
    part = f;
    done = 0;
    ++generation;
    f(0);
    while (done != n - 1)
      _mm_pause();
  }

private:
  void work(int64_t i) {
    for (int64_t seen = 0;;) {
      while (generation == seen)
        _mm_pause();
      ++seen;
      if (stop)
        return;
      part(i);
      ++done;
    }
  }
  int64_t n;
  std::atomic<int64_t> generation{0}, done{0};
  std::atomic<bool> stop{false};
  std::function<void(int64_t)> part;
  std::vector<std::thread> threads;
};

struct Timing {
  double best, median;
};
template <typename F>
Timing measure(int64_t layers, F step) {
  std::vector<double> times;
  double end = now() + 1.5;
  while (now() < end || times.size() < 3) {
    double start = now();
    for (int64_t layer = 0; layer < layers; ++layer)
      step(layer);
    times.push_back((now() - start) / double(layers));
  }
  std::sort(times.begin(), times.end());
  return {times.front() * 1e3, times[times.size() / 2] * 1e3};
}

/// A compiled format and the arguments of one decode step.
class FormatBench {
public:
  FormatBench(const std::string &text, const Options &o) : text(text), o(o) {
    compile();
    allocateCaches();
    setArguments();
  }
  ~FormatBench() { munmap(pool, std::size_t(layerBytes * layers + 128)); }
  void run(double plainMs);

private:
  void compile();
  void allocateCaches();
  void setArguments();

  std::string text;
  const Options &o;
  KernelSpec spec;
  CpuCode code;
  std::unique_ptr<x86::Jit> jit;
  KvAttendFn attend, merge;
  int64_t sealedPages, openPages, sealedBytes, layerBytes, layers, items;
  uint8_t *pool;
  std::vector<int32_t> table;
  std::vector<uint8_t> out;
  std::vector<float> lse;
  int32_t rowSeq = 0, indptr[2] = {0, 1}, sealed, length;
  KvAttendArgs args{};
};

[[noreturn]] void fail(const std::string &message) {
  llvm::errs() << "bench-decode: " << message << "\n";
  exit(1);
}

void FormatBench::compile() {
  spec.qHeads = o.qHeads;
  spec.kvHeads = o.kvHeads;
  spec.headDim = spec.valueDim = o.d;
  auto format = Format::parse(text);
  if (auto *error = std::get_if<FormatError>(&format))
    fail(error->message);
  spec.format = std::get<Format>(format);
  if (auto error = spec.verify())
    fail(error->message);
  CpuOptions options;
  options.tier = o.tier;
  options.schedule = o.schedule;
  options.attendOnly = true;
  llvm::ExitOnError check("bench-decode: ");
  code = check(compileCpu(spec, options));
  if (o.writeObject) {
    std::error_code ec;
    llvm::raw_fd_ostream(text + ".o", ec)
        << llvm::StringRef(code.object.data(), code.object.size());
  }
  jit = check(x86::Jit::createFromObject(code.object));
  attend = reinterpret_cast<KvAttendFn>(check(jit->lookup("attend")));
  merge = reinterpret_cast<KvAttendFn>(check(jit->lookup("merge")));
}

void FormatBench::allocateCaches() {
  PageImage image = std::get<PageImage>(
      PageImage::create(spec.format, o.d, o.d, ImageFamily::X86_64));
  int64_t page = spec.format.page, pages = (o.tokens + page - 1) / page;
  sealedPages = std::max<int64_t>(o.tokens - spec.format.recent, 0) / page;
  openPages = pages - sealedPages;
  sealedBytes = sealedPages * o.kvHeads * image.recordBytes();
  layerBytes = sealedBytes + openPages * o.kvHeads *
                                 openRecordBytes(spec.dtype, page, o.d, o.d);
  layers = o.layers ? o.layers : std::max<int64_t>(8, 300000000 / layerBytes);
  pool = allocate(layerBytes * layers + 128);
  fill(pool, layerBytes * layers);
  for (int64_t p = 0; p < sealedPages; ++p)
    table.push_back(int32_t(p));
  for (int64_t p = 0; p < openPages; ++p)
    table.push_back(int32_t(p));
}

void FormatBench::setArguments() {
  uint8_t *query = allocate(o.qHeads * o.d * 2);
  fill(query, o.qHeads * o.d * 2);
  out.resize(std::size_t(o.qHeads * o.d * 4));
  lse.resize(std::size_t(o.qHeads));
  sealed = int32_t(sealedPages);
  length = int32_t(o.tokens);
  int64_t split =
      code.splitTokens ? code.splitTokens : kvcache_split_tokens(o.tokens);
  int64_t maxSplits =
      kvcache_num_splits(o.tokens, sealedPages, spec.format.page, 0, split);
  args.q = query;
  args.row_seq = &rowSeq;
  args.q_indptr = indptr;
  args.sealed_table = args.open_table = table.data();
  args.sealed_pages = &sealed;
  args.lengths = &length;
  args.out = out.data();
  args.lse = lse.data();
  args.workspace =
      allocate(kvcache_workspace_bytes(1, o.qHeads, maxSplits, o.d, 0));
  args.row_end = 1;
  args.max_splits = maxSplits;
  int64_t chunks = (spec.group() + code.qPack - 1) / code.qPack;
  items = o.kvHeads * chunks * maxSplits;
}

void FormatBench::run(double plainMs) {
  Team team(o.threads);
  Timing t = measure(layers, [&](int64_t layer) {
    KvAttendArgs layerArgs = args;
    layerArgs.sealed_pool = pool + layer * layerBytes;
    layerArgs.open_pool = pool + layer * layerBytes + sealedBytes;
    team.run([&](int64_t i) {
      attend(&layerArgs, items * i / o.threads, items * (i + 1) / o.threads);
    });
    team.run([&](int64_t i) {
      merge(&layerArgs, o.qHeads * i / o.threads,
            o.qHeads * (i + 1) / o.threads);
    });
  });
  llvm::outs() << llvm::formatv(
      "{0,-12} {1,8:F3} ms  median {2,8:F3}  {3,6:F1} GB/s  x{4:F2} of the "
      "plain read\n",
      text, t.best, t.median, double(layerBytes) / t.best / 1e6,
      t.best / plainMs);
}

double benchPlain(const Options &o) {
  int64_t bytes = o.tokens * o.kvHeads * o.d * 2 * 2, layers = 8;
  uint8_t *pool = allocate(bytes * layers + 4096);
  fill(pool, bytes * layers);
  Team team(o.threads);
  std::atomic<uint64_t> sink{0};
  Timing t = measure(layers, [&](int64_t layer) {
    team.run([&](int64_t i) {
      int64_t part = bytes / o.threads;
      sink += plainRead(pool + layer * bytes + part * i, part);
    });
  });
  llvm::outs() << llvm::formatv(
      "{0,-12} {1,8:F3} ms  median {2,8:F3}  {3,6:F1} GB/s  ({4} threads)\n",
      "plain read", t.best, t.median, double(bytes) / t.best / 1e6, o.threads);
  munmap(pool, std::size_t(bytes * layers + 4096));
  return t.best;
}

} // namespace

int main(int argc, char **argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    llvm::StringRef arg = argv[i];
    auto number = [&](llvm::StringRef name, int64_t &to) {
      return arg.consume_front(name) && !arg.getAsInteger(10, to);
    };
    if (arg.consume_front("--format="))
      o.formats.push_back(arg.str());
    else if (arg.consume_front("--schedule="))
      o.schedule = arg.str();
    else if (arg.consume_front("--cpu="))
      o.tier = parseCpuTier(std::string_view(arg)).value_or(CpuTier::AVX512);
    else if (arg == "--cpu-time")
      cpuTime = true;
    else if (arg == "--object")
      o.writeObject = true;
    else if (!number("--tokens=", o.tokens) && !number("--layers=", o.layers) &&
             !number("--q-heads=", o.qHeads) &&
             !number("--kv-heads=", o.kvHeads) && !number("--head-dim=", o.d) &&
             !number("--threads=", o.threads)) {
      llvm::errs() << "usage: bench-decode [--format=F]... [--tokens=N] "
                      "[--layers=N] [--threads=N] [--schedule=KEY=V,...] "
                      "[--cpu=v2|avx2|avx512] [--cpu-time] [--object]\n";
      return 1;
    }
  }
  if (o.formats.empty())
    o.formats = {"f16", "int8", "kivi4"};
  double plainMs = benchPlain(o);
  for (const std::string &format : o.formats)
    FormatBench(format, o).run(plainMs);
  return 0;
}
