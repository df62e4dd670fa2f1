//===- DeviceTest.cpp - Kernels that a device launches --------------------===//

#include "TestCache.h"

#include <cstring>

using namespace kvcache::test;

namespace {

/// A device that runs the test kernel, and looks at what it is given.
struct FakeDevice {
  int launches[5] = {};
  const char *failure = nullptr;

  static KvStatus run(void *context, const KvLaunchRequest *r,
                      const char **message) {
    auto &self = *static_cast<FakeDevice *>(context);
    ++self.launches[r->entry];
    if (self.failure) {
      *message = self.failure;
      return KV_DEVICE_ERROR;
    }
    const KvKernelEntries entries = testEntries();
    if (r->entry == KV_ENTRY_ATTEND) {
      const auto *a = static_cast<const KvAttendArgs *>(r->args);
      int64_t rows = a->row_end - a->row_begin;
      EXPECT_EQ(r->fields, 21);
      EXPECT_EQ(r->items, rows * kvHeads * a->max_splits);
      // Every byte that the sizes promise is there to read.
      const auto *fields = static_cast<char *const *>(r->args);
      for (int64_t i = 0, sum = 0; i < r->fields; ++i)
        for (int64_t b = 0; b < r->field_bytes[i]; ++b)
          sum += fields[i][b];
      entries.attend(a, 0, r->items);
      entries.merge(a, 0, rows * qHeads);
    } else if (r->entry == KV_ENTRY_APPEND) {
      entries.append(static_cast<const KvAppendArgs *>(r->args), 0, r->items);
    } else if (r->entry == KV_ENTRY_READ) {
      entries.read(static_cast<const KvReadArgs *>(r->args), 0, r->items);
    } else {
      auto fn = r->entry == KV_ENTRY_SEAL ? entries.seal : entries.unseal;
      fn(static_cast<const KvSealArgs *>(r->args), 0, r->items);
    }
    return KV_OK;
  }
};

} // namespace

TEST(Device, DoesWhatTheCpuDoes) {
  TestCache onCpu(64, 1, 5);
  FakeDevice device;
  KvKernel *kernel = nullptr;
  ASSERT_EQ(kvcache_kernel_create_on_device(&onCpu.info, FakeDevice::run,
                                            nullptr, &device, &kernel),
            KV_OK);
  KvCacheOptions options{64 * page, nullptr, nullptr};
  KvCache *cache = nullptr;
  ASSERT_EQ(kvcache_create(kernel, &options, &cache), KV_OK);
  int64_t a = onCpu.make(), b = -1;
  ASSERT_EQ(kvcache_sequence_new(cache, &b), KV_OK);
  Rows k = randomRows(onCpu.rng, 50);
  ASSERT_EQ(onCpu.append(a, k, k), KV_OK);
  ASSERT_EQ(kvcache_append(cache, b, k.data(), k.data(), 50, nullptr), KV_OK);
  ASSERT_EQ(onCpu.truncate(a, 37), KV_OK);
  ASSERT_EQ(kvcache_sequence_truncate(cache, b, 37), KV_OK);
  float q[qHeads * headDim], out[2][qHeads * valueDim], lse[2][qHeads];
  std::fill(std::begin(q), std::end(q), 0.25f);
  ASSERT_EQ(
      kvcache_attend(onCpu.cache, q, &a, nullptr, 1, nullptr, out[0], lse[0]),
      KV_OK);
  ASSERT_EQ(kvcache_attend(cache, q, &b, nullptr, 1, nullptr, out[1], lse[1]),
            KV_OK);
  EXPECT_EQ(std::memcmp(out[0], out[1], sizeof out[0]), 0);
  EXPECT_EQ(std::memcmp(lse[0], lse[1], sizeof lse[0]), 0);
  for (KvEntry e :
       {KV_ENTRY_ATTEND, KV_ENTRY_APPEND, KV_ENTRY_SEAL, KV_ENTRY_UNSEAL})
    EXPECT_GT(device.launches[e], 0);

  // What the device reports is the error; nothing has changed.
  device.failure = "line 7: violation: race";
  EXPECT_EQ(kvcache_append(cache, b, k.data(), k.data(), 9, nullptr),
            KV_DEVICE_ERROR);
  EXPECT_STREQ(kvcache_last_error(), "line 7: violation: race");
  int64_t length = 0, two = 2;
  EXPECT_EQ(kvcache_sequence_length(cache, b, &length), KV_OK);
  EXPECT_EQ(length, 37);
  EXPECT_EQ(kvcache_attend(cache, q, &b, &two, 1, nullptr, out[1], lse[1]),
            KV_INVALID_ARGUMENT);
  kvcache_destroy(cache);
  kvcache_kernel_release(kernel);
}
