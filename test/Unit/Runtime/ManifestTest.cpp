//===- ManifestTest.cpp - Manifests and packages --------------------------===//

#include "Manifest.h"
#include "CpuTier.h"
#include "TestCache.h"

#include <filesystem>
#include <fstream>

using namespace kvcache::rt;
namespace fs = std::filesystem;

static std::string hex(uint64_t x) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", (unsigned long long)x);
  return text;
}

static std::string manifestFor(const std::string &code) {
  return R"({"kvcache_package": 1, "abi": 1, "target": "x86-64",
 "spec": "test", "format": "key=f32", "image_hash": "0000000000001234",
 "dtype": "f32", "q_heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 8,
 "page_tokens": 4, "sink_pages": 0, "recent_tokens": 0,
 "sealed_record_bytes": 256, "open_record_bytes": 256, "q_pack": 2,
 "split_tokens": 8, "causal": 1, "window_left": -1, "window_right": -1,
 "alibi": 0, "static_k_scale": 0, "static_v_scale": 0,
 "entries": {"attend": "test_attend", "merge": "test_merge",
  "append": "test_append", "seal": "test_seal", "unseal": "test_unseal",
  "read": "test_read"},
 "code": [{"tier": "v2", "file": "kernel-v2.so", "bytes": )" +
         std::to_string(code.size()) + R"(, "hash": ")" + hex(hashBytes(code)) +
         "\"}]}";
}

static std::string replaced(std::string text, const std::string &from,
                            const std::string &to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Manifest, Parses) {
  Manifest m;
  Error e = parseManifest(manifestFor("abc"), m);
  ASSERT_FALSE(e) << e.message;
  EXPECT_EQ(m.info.head_dim, 8);
  EXPECT_EQ(m.info.image_hash, 0x1234u);
  EXPECT_EQ(m.entries[5], "test_read");
  EXPECT_EQ(m.code[0].bytes, 3);
}

TEST(Manifest, SaysWhatIsWrong) {
  struct Case {
    const char *from, *to, *message;
  };
  const Case cases[] = {
      {"{\"kv", "[\"kv", "manifest: is not JSON"},
      {"\"abi\": 1", "\"abi\": 2",
       "manifest: the kernels follow ABI 2, this runtime 1: compile the "
       "package again"},
      {"\"target\": \"x86-64\"", "\"target\": \"sm_80\"",
       "manifest: is for target \"sm_80\", this runtime loads x86-64"},
      {"\"q_heads\": 4", "\"q_heads\": 5",
       "manifest: 5 query heads cannot share 2 key/value heads: the first must "
       "be a multiple of the second"},
      {"\"q_heads\": 4", "\"q_heads\": 99999999999999999999",
       "manifest: 'q_heads' is 1e+20, expected an integer"},
      {"\"q_heads\": 4", "\"q_heads\": \"4\"",
       "manifest: 'q_heads' is \"4\", expected an integer"},
      {"\"q_heads\": 4,", "",
       "manifest: 'q_heads' is missing, expected an "
       "integer"},
      {"256, \"open", "100, \"open",
       "manifest: kernel's sealed_record_bytes is 100, expected 128 to "
       "1099511627776"},
      {"0000000000001234", "xyz",
       "manifest: 'image_hash' is \"xyz\", expected 16 lower-case hexadecimal "
       "digits"},
      {"kernel-v2.so", "../kernel.so",
       "manifest: file \"../kernel.so\", expected the name of a file beside "
       "the "
       "manifest"},
      {"\"tier\": \"v2\"", "\"tier\": \"v9\"",
       "manifest: tier \"v9\", expected avx512, avx2 or v2"},
      {"test_merge", "a b",
       "manifest: entry 'merge' is \"a b\", expected a symbol of letters, "
       "digits, '_' and '.'"},
  };
  for (const Case &c : cases) {
    Manifest m;
    Error e = parseManifest(replaced(manifestFor("abc"), c.from, c.to), m);
    EXPECT_EQ(e.code, KV_PACKAGE_ERROR);
    EXPECT_EQ(e.message, c.message);
  }
}

// Every cut of a manifest is refused, and deep nesting does not overflow.
TEST(Manifest, DamagedOnesAreRefused) {
  std::string text = manifestFor("abc");
  for (size_t n = 0; n < text.size(); ++n) {
    Manifest m;
    EXPECT_TRUE(parseManifest(std::string_view(text).substr(0, n), m));
  }
  Manifest m;
  EXPECT_TRUE(parseManifest(std::string(1000000, '['), m));
}

namespace {

class Package : public testing::Test {
protected:
  void SetUp() override {
    folder = fs::temp_directory_path() /
             ("kvcache-package-" + std::to_string(getpid()));
    fs::create_directories(folder);
    std::ifstream in(TEST_KERNEL_FILE, std::ios::binary);
    code.assign(std::istreambuf_iterator<char>(in), {});
    ASSERT_FALSE(code.empty());
    write("kernel-v2.so", code);
    write("manifest.json", manifestFor(code));
  }
  void TearDown() override { fs::remove_all(folder); }

  void write(const char *name, const std::string &bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  }
  std::string load(const char *tier = nullptr, uint64_t hash = 0) {
    KvKernel *kernel = nullptr;
    KvStatus status = kvcache_kernel_load(folder.c_str(), tier, hash, &kernel);
    if (status != KV_OK)
      return kvcache_last_error();
    EXPECT_STREQ(kvcache_kernel_tier(kernel), "v2");
    kvcache_kernel_release(kernel);
    return "";
  }

  fs::path folder;
  std::string code;
};

} // namespace

TEST_F(Package, Loads) {
  EXPECT_EQ(load(), "");
  EXPECT_EQ(load("v2", 0x1234), "");
}

TEST_F(Package, SaysWhatIsWrong) {
  std::string where = "kernel package '" + folder.string() + "': ";
  EXPECT_EQ(load(nullptr, 0x99), where + "page image 1234, expected 99: it was "
                                         "compiled by another version");
  EXPECT_EQ(load("avx2"), where + "no tier 'avx2'; it holds v2");
  write("manifest.json", replaced(manifestFor(code), "test_seal", "absent"));
  EXPECT_EQ(load(),
            where + "kernel-v2.so has no entry point 'absent' for seal");
  write("manifest.json", manifestFor(code + "x"));
  EXPECT_NE(load().find("the package is damaged"), std::string::npos);
  write("manifest.json", manifestFor("no ELF file"));
  write("kernel-v2.so", "no ELF file");
  EXPECT_NE(load().find("cannot load kernel-v2.so"), std::string::npos);
  fs::remove(folder / "manifest.json");
  EXPECT_EQ(load(), where + "cannot read manifest.json");
}
