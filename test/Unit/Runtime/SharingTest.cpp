//===- SharingTest.cpp - fork, copy on write, images, truncation ----------===//

#include "TestCache.h"

using namespace kvcache::test;

TEST(Sharing, ForkCopiesNothingUntilWritten) {
  TestCache c(16, 0, 4);
  int64_t a = c.make();
  Rows keys;
  ASSERT_EQ(c.appendRandom(a, 10, &keys), KV_OK);
  int64_t used = c.pagesInUse(), b = c.fork(a);
  EXPECT_EQ(c.pagesInUse(), used);
  Rows aKeys = c.read(a);
  ASSERT_EQ(c.appendRandom(b, 1), KV_OK);
  EXPECT_EQ(c.pagesInUse(), used + 1); // the cut page was copied
  EXPECT_EQ(c.read(a), aKeys);
  ASSERT_EQ(c.appendRandom(a, 1), KV_OK); // now a's alone: written in place
  EXPECT_EQ(c.pagesInUse(), used + 1);
  EXPECT_NE(c.read(a), c.read(b));
}

// The first to seal makes the image, later holders adopt it, a fork inside its
// recent window keeps the open page.
TEST(Sharing, LaterHoldersAdoptTheImage) {
  TestCache c(32, 0, 4);
  int64_t a = c.make();
  Rows keys;
  ASSERT_EQ(c.appendRandom(a, 4, &keys), KV_OK);
  int64_t b = c.fork(a), d = c.fork(a);
  ASSERT_EQ(c.appendRandom(a, 4), KV_OK); // page 0 of a becomes old
  EXPECT_EQ(c.sealedTokens(a), 4);
  EXPECT_EQ(c.sealedTokens(b), 0);
  EXPECT_EQ(c.read(b), keys); // still exact
  EXPECT_EQ(c.stats().sealed_pages, 1);
  EXPECT_EQ(c.stats().open_pages, 2);
  ASSERT_EQ(c.appendRandom(b, 4), KV_OK); // adopts
  EXPECT_EQ(c.stats().sealed_pages, 1);
  EXPECT_EQ(c.stats().open_pages, 3);
  ASSERT_EQ(c.appendRandom(d, 4), KV_OK); // adopts, frees the open page
  EXPECT_EQ(c.stats().sealed_pages, 1);
  EXPECT_EQ(c.stats().open_pages, 3);
  EXPECT_EQ(c.stats().shared_pages, 1);
}

TEST(Sharing, AnImageOfAFreedHolderIsMadeAgain) {
  TestCache c(32, 0, 4);
  int64_t a = c.make();
  ASSERT_EQ(c.appendRandom(a, 4), KV_OK);
  int64_t b = c.fork(a);
  ASSERT_EQ(c.appendRandom(a, 4), KV_OK);
  ASSERT_EQ(c.free(a), KV_OK);
  EXPECT_EQ(c.stats().sealed_pages, 0);
  ASSERT_EQ(c.appendRandom(b, 4), KV_OK);
  EXPECT_EQ(c.sealedTokens(b), 4);
}

// A holder that cuts into a page and writes it anew must not get the old image.
TEST(Sharing, WrittenPagesLoseTheirImage) {
  TestCache c(32, 0, 4);
  int64_t a = c.make();
  ASSERT_EQ(c.appendRandom(a, 4), KV_OK);
  int64_t b = c.fork(a);
  ASSERT_EQ(c.appendRandom(a, 4), KV_OK); // a seals page 0, b keeps it open
  Rows head = c.read(b);
  head.resize(size_t(2 * rowFloats));
  ASSERT_EQ(c.truncate(b, 2), KV_OK);
  Rows keys = head;
  ASSERT_EQ(c.appendRandom(b, 6, &keys), KV_OK);
  Rows got = c.read(b);
  for (size_t i = 0; i < keys.size(); ++i)
    EXPECT_EQ(got[i], i < size_t(page * rowFloats) ? coded(keys[i]) : keys[i]);
}

TEST(Sharing, TruncateDecodesTheCutPageOnly) {
  TestCache c(32, 1, 4);
  int64_t a = c.make();
  Rows keys;
  ASSERT_EQ(c.appendRandom(a, 24, &keys), KV_OK);
  int64_t b = c.fork(a);
  EXPECT_EQ(c.sealedTokens(a), 16);
  Rows decoded = c.read(a);
  ASSERT_EQ(c.truncate(a, 14), KV_OK);
  EXPECT_EQ(c.sealedTokens(a), 8); // whole sealed pages stay, window or not
  decoded.resize(size_t(14 * rowFloats));
  EXPECT_EQ(c.read(a), decoded); // coded tokens stay coded
  EXPECT_EQ(c.length(b), 24);
  ASSERT_EQ(c.truncate(a, 12), KV_OK);
  ASSERT_EQ(c.truncate(a, 5), KV_OK);
  EXPECT_EQ(c.sealedTokens(a), 0);
  ASSERT_EQ(c.truncate(a, 3), KV_OK); // a sink page: open, exact
  ASSERT_EQ(c.truncate(a, 0), KV_OK);
  EXPECT_EQ(c.pagesInUse(), 6);
  ASSERT_EQ(c.free(b), KV_OK);
  EXPECT_EQ(c.pagesInUse(), 0);
}

TEST(Sharing, TruncateInAFullPool) {
  TestCache c(4);
  int64_t a = c.make();
  ASSERT_EQ(c.appendRandom(a, 16), KV_OK);
  int64_t b = c.fork(a);
  // Decoding a shared page needs a page; the pool has none.
  EXPECT_EQ(c.truncate(b, 14), KV_CACHE_FULL);
  EXPECT_EQ(c.length(b), 16);
  EXPECT_EQ(c.truncate(b, 12), KV_OK);
  ASSERT_EQ(c.free(b), KV_OK);
  EXPECT_EQ(c.truncate(a, 14), KV_OK); // alone, one page replaces another
  EXPECT_EQ(c.pagesInUse(), 4);
}

// C60: shared pages and a window; every page returned once.
TEST(Sharing, FreeingTwiceIsAnError) {
  TestCache c(16, 0, 0, /*windowLeft=*/3);
  int64_t a = c.make();
  ASSERT_EQ(c.appendRandom(a, 12), KV_OK);
  int64_t b = c.fork(a);
  Rows before = c.read(b);
  ASSERT_EQ(c.appendRandom(a, 4), KV_OK);
  ASSERT_EQ(c.free(a), KV_OK);
  EXPECT_EQ(c.read(b), before);
  ASSERT_EQ(c.free(b), KV_OK);
  EXPECT_EQ(c.pagesInUse(), 0);
  EXPECT_EQ(c.free(a), KV_INVALID_ARGUMENT);
  EXPECT_STREQ(kvcache_last_error(), "sequence 0 was freed before");
}
