//===- Cache.cpp - Kernels and paged caches for Python --------------------===//

#include "Native.h"

#include "kvcache/Compiler/CpuCompiler.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <numeric>

namespace nb = nanobind;
using namespace kvcache::python;

namespace {

/// A reference to a runtime kernel.
struct Kernel {
  KvKernel *kernel = nullptr;
  explicit Kernel(KvKernel *kernel) : kernel(kernel) {}
  Kernel(const Kernel &) = delete;
  Kernel &operator=(const Kernel &) = delete;
  ~Kernel() { kvcache_kernel_release(kernel); }

  KvKernelInfo info() const {
    KvKernelInfo i{};
    check(kvcache_kernel_info(kernel, &i));
    return i;
  }
};

struct Cache {
  KvCache *cache = nullptr;
  KvKernelInfo info{};

  Cache(const Kernel &kernel, int64_t capacity, std::optional<Bytes> kScale,
        std::optional<Bytes> vScale)
      : info(kernel.info()) {
    KvCacheOptions options{capacity, scale(kScale, "k_scale"),
                           scale(vScale, "v_scale")};
    check(kvcache_create(kernel.kernel, &options, &cache));
  }
  Cache(const Cache &) = delete;
  Cache &operator=(const Cache &) = delete;
  ~Cache() { kvcache_destroy(cache); }

  const float *scale(const std::optional<Bytes> &s, const char *name) const {
    if (!s)
      return nullptr;
    checkBytes(s->nbytes(), info.kv_heads * 4, name);
    return static_cast<const float *>(s->data());
  }
  int64_t elementBytes() const { return info.dtype == KV_F32 ? 4 : 2; }

  int64_t newSequence() {
    int64_t id;
    check(kvcache_sequence_new(cache, &id));
    return id;
  }
  int64_t fork(int64_t id) {
    int64_t child;
    check(kvcache_sequence_fork(cache, id, &child));
    return child;
  }
  void free(int64_t id) { check(kvcache_sequence_free(cache, id)); }
  void truncate(int64_t id, int64_t n) {
    KvStatus status;
    {
      nb::gil_scoped_release release;
      status = kvcache_sequence_truncate(cache, id, n);
    }
    check(status);
  }
  int64_t length(int64_t id) {
    int64_t n;
    check(kvcache_sequence_length(cache, id, &n));
    return n;
  }
  int64_t sealedTokens(int64_t id) {
    int64_t n;
    check(kvcache_sequence_sealed(cache, id, &n));
    return n;
  }
  // The refused row, or -1; other failures raise.
  int64_t append(int64_t id, Bytes k, Bytes v, int64_t tokens) {
    int64_t row = info.kv_heads * elementBytes() * tokens, refused = -1;
    checkBytes(k.nbytes(), row * info.head_dim, "k");
    checkBytes(v.nbytes(), row * info.value_dim, "v");
    KvStatus status;
    {
      nb::gil_scoped_release release;
      status = kvcache_append(cache, id, k.data(), v.data(), tokens, &refused);
    }
    if (refused < 0)
      check(status);
    return refused;
  }
  void attend(Bytes q, const std::vector<int64_t> &ids,
              const std::vector<int64_t> &lens, std::optional<Bytes> slopes,
              MutableBytes out, MutableBytes lse) {
    if (ids.size() != lens.size())
      throw nb::value_error("one q_len per sequence is needed");
    int64_t rows = std::accumulate(lens.begin(), lens.end(), int64_t(0));
    int64_t heads = rows * info.q_heads;
    checkBytes(q.nbytes(), heads * info.head_dim * elementBytes(), "q");
    checkBytes(out.nbytes(), heads * info.value_dim * elementBytes(), "out");
    checkBytes(lse.nbytes(), heads * 4, "lse");
    if (slopes)
      checkBytes(slopes->nbytes(), info.q_heads * 4, "alibi slopes");
    KvStatus status;
    {
      nb::gil_scoped_release release;
      status = kvcache_attend(
          cache, q.data(), ids.data(), lens.data(), int64_t(ids.size()),
          slopes ? static_cast<const float *>(slopes->data()) : nullptr,
          out.data(), static_cast<float *>(lse.data()));
    }
    check(status);
  }
  void read(int64_t id, MutableBytes k, MutableBytes v) {
    int64_t row = length(id) * info.kv_heads * 4;
    checkBytes(k.nbytes(), row * info.head_dim, "k");
    checkBytes(v.nbytes(), row * info.value_dim, "v");
    check(kvcache_read(cache, id, static_cast<float *>(k.data()),
                       static_cast<float *>(v.data())));
  }
  nb::bytes dump(int64_t id) {
    size_t size = 0;
    check(kvcache_dump(cache, id, nullptr, 0, &size));
    std::string bytes(size, '\0');
    check(kvcache_dump(cache, id, bytes.data(), size, &size));
    return nb::bytes(bytes.data(), size);
  }
  nb::dict stats() {
    KvCacheStats s{};
    check(kvcache_stats(cache, &s));
    nb::dict d;
    d["capacity_pages"] = s.capacity_pages;
    d["open_pages"] = s.open_pages;
    d["sealed_pages"] = s.sealed_pages;
    d["shared_pages"] = s.shared_pages;
    d["open_page_bytes"] = s.open_page_bytes;
    d["sealed_page_bytes"] = s.sealed_page_bytes;
    d["bytes_held"] = s.bytes_held;
    d["sequences"] = s.sequences;
    d["sequence_tokens"] = s.sequence_tokens;
    d["stored_tokens"] = s.stored_tokens;
    d["wasted_bytes"] = s.wasted_bytes;
    return d;
  }
};

} // namespace

static void *dataOf(nb::dict &arrays, const char *name, bool needed = true) {
  if (!arrays.contains(name)) {
    if (needed)
      throw nb::value_error((std::string(name) + " is missing").c_str());
    return nullptr;
  }
  return nb::cast<MutableBytes>(nb::object(arrays[name])).data();
}

// Attention on the caller's own pools and tables: `arrays` holds NumPy arrays
// by the ABI's names, the other arguments are sizes in elements.
static void attendTables(const Kernel &kernel, nb::dict arrays, int64_t batch,
                         int64_t tablePages, int64_t headStride,
                         int64_t sealedPool, int64_t openPool) {
  KvAttendArgs a{};
  a.q = dataOf(arrays, "q");
  a.row_seq = dataOf(arrays, "row_seq");
  a.q_indptr = dataOf(arrays, "q_indptr");
  a.sealed_table = dataOf(arrays, "sealed_table");
  a.open_table = dataOf(arrays, "open_table");
  a.table_seq_stride =
      headStride ? headStride * kernel.info().kv_heads : tablePages;
  a.table_head_stride = headStride;
  a.sealed_pages = dataOf(arrays, "sealed_pages");
  a.lengths = dataOf(arrays, "lengths");
  a.sealed_pool = dataOf(arrays, "sealed_pool");
  a.open_pool = dataOf(arrays, "open_pool");
  a.k_scale = dataOf(arrays, "k_scale", false);
  a.v_scale = dataOf(arrays, "v_scale", false);
  a.slopes = dataOf(arrays, "slopes", false);
  a.out = dataOf(arrays, "out");
  a.lse = dataOf(arrays, "lse");
  KvTableSizes sizes{batch, tablePages, sealedPool, openPool};
  check(kvcache_attend_tables(kernel.kernel, &a, &sizes));
}

static void appendSlots(const Kernel &kernel, nb::dict arrays, int64_t rows,
                        int64_t openPool) {
  KvAppendArgs a{};
  a.k = dataOf(arrays, "k");
  a.v = dataOf(arrays, "v");
  a.slots = dataOf(arrays, "slots");
  a.open_pool = dataOf(arrays, "open_pool");
  a.k_scale = dataOf(arrays, "k_scale", false);
  a.v_scale = dataOf(arrays, "v_scale", false);
  check(kvcache_append_slots(kernel.kernel, &a, rows, openPool, nullptr));
}

// Refuses a kernel (of a package) that was compiled for another spec.
static void checkFits(const Kernel &kernel, const kvcache::KernelSpec &spec) {
  KvKernelInfo have = kernel.info();
  KvKernelInfo want =
      unwrap(kvcache::kernelInfo(spec, have.q_pack, have.split_tokens));
  const std::pair<const char *, int64_t KvKernelInfo::*> fields[] = {
      {"q_heads", &KvKernelInfo::q_heads},
      {"kv_heads", &KvKernelInfo::kv_heads},
      {"head_dim", &KvKernelInfo::head_dim},
      {"value_dim", &KvKernelInfo::value_dim},
      {"dtype", &KvKernelInfo::dtype},
      {"page_tokens", &KvKernelInfo::page_tokens},
      {"sink_pages", &KvKernelInfo::sink_pages},
      {"recent_tokens", &KvKernelInfo::recent_tokens},
      {"causal", &KvKernelInfo::causal},
      {"window_left", &KvKernelInfo::window_left},
      {"window_right", &KvKernelInfo::window_right},
      {"alibi", &KvKernelInfo::alibi},
      {"static_k_scale", &KvKernelInfo::static_k_scale},
      {"static_v_scale", &KvKernelInfo::static_v_scale},
  };
  for (auto [name, member] : fields)
    if (have.*member != want.*member)
      throw nb::value_error(("the kernel has " + std::string(name) + " " +
                             std::to_string(have.*member) +
                             ", the spec needs " + std::to_string(want.*member))
                                .c_str());
  if (have.image_hash != want.image_hash)
    throw nb::value_error("the kernel's page image is not the spec's: it was "
                          "compiled for another format or by another version");
}

static void bindKernel(nb::module_ &m) {
  nb::class_<Kernel>(m, "Kernel")
      .def("__init__",
           [](Kernel *self, nb::capsule raw) {
             auto *k = static_cast<KvKernel *>(raw.data());
             kvcache_kernel_retain(k);
             new (self) Kernel(k);
           })
      .def_prop_ro("info",
                   [](const Kernel &k) {
                     KvKernelInfo i = k.info();
                     nb::dict d;
                     d["page_tokens"] = i.page_tokens;
                     d["sink_pages"] = i.sink_pages;
                     d["recent_tokens"] = i.recent_tokens;
                     d["sealed_record_bytes"] = i.sealed_record_bytes;
                     d["open_record_bytes"] = i.open_record_bytes;
                     d["q_pack"] = i.q_pack;
                     d["split_tokens"] = i.split_tokens;
                     d["static_k_scale"] = bool(i.static_k_scale);
                     d["static_v_scale"] = bool(i.static_v_scale);
                     d["image_hash"] = i.image_hash;
                     return d;
                   })
      .def_prop_ro("tier",
                   [](const Kernel &k) {
                     return std::string(kvcache_kernel_tier(k.kernel));
                   })
      .def("check_fits", &checkFits)
      .def("attend_tables", &attendTables)
      .def("append_slots", &appendSlots);
  m.def(
      "load_package",
      [](const std::string &path, std::optional<std::string> tier) {
        KvKernel *k = nullptr;
        check(kvcache_kernel_load(path.c_str(), tier ? tier->c_str() : nullptr,
                                  0, &k));
        return new Kernel(k);
      },
      nb::arg("path"), nb::arg("tier").none() = nb::none(),
      nb::rv_policy::take_ownership);
}

void kvcache::python::bindCache(nb::module_ &m) {
  bindKernel(m);
  nb::class_<Cache>(m, "Cache")
      .def(nb::init<const Kernel &, int64_t, std::optional<Bytes>,
                    std::optional<Bytes>>(),
           nb::arg("kernel"), nb::arg("capacity_tokens"),
           nb::arg("k_scale").none(), nb::arg("v_scale").none())
      .def("new_sequence", &Cache::newSequence)
      .def("fork", &Cache::fork)
      .def("free", &Cache::free)
      .def("truncate", &Cache::truncate)
      .def("length", &Cache::length)
      .def("sealed_tokens", &Cache::sealedTokens)
      .def("append", &Cache::append)
      .def("attend", &Cache::attend, nb::arg("q"), nb::arg("sequences"),
           nb::arg("q_lens"), nb::arg("slopes").none(), nb::arg("out"),
           nb::arg("lse"))
      .def("read", &Cache::read)
      .def("dump", &Cache::dump)
      .def("stats", &Cache::stats);
}
