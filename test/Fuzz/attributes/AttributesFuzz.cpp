//===- AttributesFuzz.cpp - libFuzzer target of attribute and type parsing ===//
//
// Whatever parses as an attribute or a type of the dialect prints as a text
// that parses to the same attribute or type; everything else is refused with a
// message. The texts are parsed within `#kvcache.` and `!kvcache.`, so that the
// fuzzer works on our parsers and not on MLIR's.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/IR/KVCache.h"
#include "mlir/AsmParser/AsmParser.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"

#include <cstdlib>
#include <memory>

using namespace mlir;

// The shared LLVM is not instrumented: containers that cross the border look
// overflowed, memory that its allocators hand out poisoned,
// and its own globals leaked.
extern "C" const char *__asan_default_options() {
  return "detect_container_overflow=0:detect_leaks=0:allow_user_poisoning=0";
}

static std::unique_ptr<MLIRContext> makeContext(unsigned &errors) {
  auto context =
      std::make_unique<MLIRContext>(MLIRContext::Threading::DISABLED);
  context->loadDialect<kvcache::KVCacheDialect>();
  context->getDiagEngine().registerHandler([&errors](Diagnostic &diag) {
    errors += diag.getSeverity() == DiagnosticSeverity::Error;
    return success();
  });
  return context;
}

/// Aborts unless `parsed` is null with an error, or survives printing.
template <typename T, typename Parse>
static void check(T parsed, unsigned errors, Parse parse) {
  if (!parsed) {
    if (errors == 0)
      std::abort();
    return;
  }
  std::string text;
  llvm::raw_string_ostream(text) << parsed;
  if (parse(text) != parsed)
    std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static unsigned errors = 0;
  static std::unique_ptr<MLIRContext> context;
  static unsigned runs = 0;
  // Attributes live as long as their context.
  if (runs++ % 5000 == 0)
    context = makeContext(errors);
  StringRef input(reinterpret_cast<const char *>(data), size);
  // MLIR's lexer ends at a NUL; a comment or an alias would leave our parsers.
  if (input.contains('\0') || input.contains("//"))
    return 0;
  auto parseAttr = [](StringRef text) {
    return parseAttribute(text, context.get());
  };
  auto parseOneType = [](StringRef text) {
    return parseType(text, context.get());
  };
  errors = 0;
  check(parseAttr(("#kvcache." + input).str()), errors, parseAttr);
  errors = 0;
  check(parseOneType(("!kvcache." + input).str()), errors, parseOneType);
  return 0;
}
