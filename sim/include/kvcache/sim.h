//===- sim.h - Run and check PTX kernels without a GPU ----------*- C++ -*-===//
//
// The simulator's API: parse a PTX module, then run an entry on buffers.
//
//   auto m = sim::Module::parse(text, "k.ptx");       // throws sim::Error
//   sim::Launch l{.entry = "k", .grid = {8, 1, 1}, .block = {128, 1, 1}};
//   std::vector<sim::Buffer> b{{x.data(), x.size()}, {y.data(), y.size()}};
//   std::vector<sim::Arg> a{sim::Arg::pointer(0), sim::Arg::pointer(1),
//                           sim::Arg::value(n)};
//   sim::Result r = sim::runKernel(*m, l, b, a);      // r.violation, r.notes
//
// Buffers are used in place: what the kernel stores is in `data` afterwards.
//
//===----------------------------------------------------------------------===//
#ifndef KVCACHE_SIM_H
#define KVCACHE_SIM_H

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::sim {

/// A user error: PTX that does not parse or names an unknown instruction, a
/// wrong launch. `what()` is "FILE:LINE: error: ..." or "error: ...".
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Bits of Launch::checks. Out-of-bounds accesses and the step limit always
/// end a run; `Bounds` adds nothing but the name.
enum Check : uint32_t {
  CheckBounds = 1,
  CheckAlign = 2,
  CheckInit = 4,
  CheckRace = 8,
  CheckAsync = 16,
  CheckBarrier = 32,
  CheckTarget = 64,
  CheckOverflow = 128,
  CheckRaceStrict = 256,   ///< equal values from several warps are races too
  CheckRaceLockstep = 512, ///< lanes of one warp count as ordered
  CheckAll = 255,
  CheckNone = 0,
};

/// How matrix products are accumulated; see sim/README.md.
enum class MmaModel : uint8_t { Exact, A100, Ada, H100 };

/// "exact", "a100", "ada" or "h100".
inline std::optional<MmaModel> parseMmaModel(std::string_view name) {
  constexpr std::string_view names[] = {"exact", "a100", "ada", "h100"};
  for (uint8_t i = 0; i < 4; ++i)
    if (name == names[i])
      return MmaModel(i);
  return std::nullopt;
}

/// Where in some bytes the device address of a buffer goes.
struct BufferPointer {
  size_t offset;
  size_t buffer;
  int64_t addend = 0;
};

/// Device memory made from `data`. 256-byte aligned on the device.
struct Buffer {
  void *data = nullptr;
  size_t bytes = 0;
  bool initialised = true; ///< false: every byte is undefined at first
  bool readOnly = false;
  std::string name;
  std::vector<BufferPointer> pointers; ///< written to `data` before the run
};

/// One kernel parameter: its bytes, and where in them device addresses of
/// buffers go.
struct Arg {
  std::vector<uint8_t> bytes;
  using Pointer = BufferPointer;
  std::vector<Pointer> pointers;
  size_t align = 8;

  static Arg pointer(size_t buffer, int64_t addend = 0) {
    Arg a;
    a.bytes.assign(8, 0);
    a.pointers.push_back({0, buffer, addend});
    return a;
  }
  template <class T>
  static Arg value(T v) {
    Arg a;
    a.bytes.resize(sizeof(T));
    std::memcpy(a.bytes.data(), &v, sizeof(T));
    a.align = sizeof(T);
    return a;
  }
};

using Dim3 = std::array<int64_t, 3>;

struct Launch {
  std::string entry;
  Dim3 grid{1, 1, 1}, block{1, 1, 1};
  Dim3 cluster{0, 0, 0}; ///< zero: what the kernel declares, else 1
  int64_t sharedBytes = 0;
  uint32_t checks = CheckAll;
  uint64_t maxSteps = uint64_t(1) << 30; ///< warp instructions in total
  std::string target;                    ///< empty: the file's
  MmaModel mmaModel = MmaModel::Exact;
  bool flushSubnormals = false; ///< of mma inputs
  uint32_t perturb = 0; ///< approximate functions: seed of errors within the
                        ///< ISA's limit; 0: exact
  int threads = 0;      ///< 0: all
  bool counters = false, countersPerLine = false;
  /// First contents of module variables, by name (cudaMemcpyToSymbol).
  std::vector<std::pair<std::string, std::vector<uint8_t>>> symbols;
};

struct Violation {
  std::string kind;    ///< "bounds", ..., "steps"
  int line = 0;        ///< of the PTX
  std::string message; ///< all after "FILE:LINE: violation: "
  std::array<int64_t, 3> block{}, thread{};
  uint64_t address = 0;
};

struct Result {
  std::optional<Violation> violation;
  std::vector<std::string> notes;
  std::string counters; ///< JSON, if asked for
  uint64_t warpInstructions = 0, threadInstructions = 0;
};

/// A parsed module; immutable, may be shared between threads.
class Module {
public:
  static std::shared_ptr<const Module> parse(const std::string &text,
                                             const std::string &fileName);
  virtual ~Module() = default;
  /// Names of the entries, in the file's order.
  virtual std::vector<std::string> entries() const = 0;
  virtual std::string target() const = 0;
  virtual const std::vector<std::string> &notes() const = 0;
};

/// Runs one launch to its end or to its first violation. Throws Error for user
/// errors, all of them before the first instruction.
Result runKernel(const Module &module, const Launch &launch,
                 std::vector<Buffer> &buffers, const std::vector<Arg> &args);

/// 128-byte tensor map for cp.async.bulk.tensor, innermost dimension first.
struct TensorMapDesc {
  std::string dtype;                    ///< "f16", "u8", ...
  std::vector<uint64_t> dims;           ///< elements
  std::vector<uint64_t> strides;        ///< bytes, one fewer than dims
  std::vector<uint32_t> box;            ///< elements
  std::vector<uint32_t> elementStrides; ///< empty: ones
  std::string swizzle = "none";         ///< none 32B 64B 128B
  std::string oobFill = "zero";         ///< zero nan
  std::string interleave = "none";
};
/// An argument holding such a map of `buffer`; throws Error when it is invalid.
Arg tensorMapArg(const TensorMapDesc &desc, size_t buffer);
/// Only its 128 bytes, with the address left zero (it belongs at byte 0).
std::vector<uint8_t> encodeTensorMap(const TensorMapDesc &desc);

/// The coverage table (Markdown): every instruction form the decoders know.
std::string coverageTable();
/// The same of given forms, one a line (operands %p %c %h %r %f %w %d %q,
/// "{r*4}" a vector): form, least chip and state, separated by tabs.
std::string coverageOf(const std::string &forms);

} // namespace kvcache::sim

#endif // KVCACHE_SIM_H
