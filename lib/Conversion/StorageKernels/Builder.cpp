//===- Builder.cpp - What the storage kernels are written with ------------===//
#include "Builder.h"
#include "kvcache/Format/Codec.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace kvcache;
using namespace kvcache::storage;

//===----------------------------------------------------------------------===//
// Entry points
//===----------------------------------------------------------------------===//

static Type pointerType(const Context &c) {
  return LLVM::LLVMPointerType::get(c.module.getContext(), c.blocks() ? 1 : 0);
}

/// A GPU kernel takes the fields themselves.
static LLVM::LLVMFuncOp makeFunction(const Context &c, OpBuilder &b,
                                     StringRef name, ArrayRef<Field> fields) {
  SmallVector<Type> types;
  Type i64 = b.getI64Type(), ptr = pointerType(c);
  if (c.blocks())
    for (const Field &f : fields)
      types.push_back(f.isPointer ? ptr : i64);
  else
    types.push_back(ptr);
  types.append({i64, i64});
  Type result = c.blocks() ? Type(LLVM::LLVMVoidType::get(b.getContext()))
                           : Type(b.getI32Type());
  auto func = LLVM::LLVMFuncOp::create(
      b, c.module.getLoc(), (c.target.prefix + name).str(),
      LLVM::LLVMFunctionType::get(result, types));
  if (c.blocks()) {
    func->setAttr(NVVM::NVVMDialect::getKernelFuncAttrName(), b.getUnitAttr());
    func->setAttr(
        NVVM::NVVMDialect::getReqntidAttrName(),
        b.getDenseI32ArrayAttr({static_cast<int32_t>(c.target.threads)}));
    // Left alone, ptxas holds these kernels to 40 registers and spills.
    func->setAttr(NVVM::NVVMDialect::getMinctasmAttrName(),
                  b.getI32IntegerAttr(8));
    // Tables, pools and arrays are separate allocations.
    for (auto [i, f] : llvm::enumerate(fields))
      if (f.isPointer)
        func.setArgAttr(i, LLVM::LLVMDialect::getNoAliasAttrName(),
                        b.getUnitAttr());
  }
  return func;
}

Kernel::Kernel(const Context &context, StringRef name, ArrayRef<Field> fields)
    : context(context), builder(context.module.getContext()),
      env{builder, context.module.getLoc(), context.target.nativeF16,
          context.target.nativeFma},
      geometry{builder, context.module.getLoc()} {
  geometry.noWrap = true;
  builder.setInsertionPointToEnd(context.module.getBody());
  LLVM::LLVMFuncOp func = makeFunction(context, builder, name, fields);
  Block *entry = func.addEntryBlock(builder);
  builder.setInsertionPointToStart(entry);
  auto arguments = entry->getArguments();
  for (auto [i, f] : llvm::enumerate(fields)) {
    if (context.blocks()) {
      args[f.name] = arguments[i];
      continue;
    }
    Value p = at(arguments[0], ir::i64(env, 8 * i));
    Type type = f.isPointer ? pointerType(context) : builder.getI64Type();
    args[f.name] = LLVM::LoadOp::create(builder, env.loc, type, p);
  }
  begin = Int(geometry, arguments[arguments.size() - 2]);
  end = Int(geometry, arguments.back());
}

void Kernel::forItems(llvm::function_ref<void(Int)> body) {
  if (!context.blocks())
    return loop(begin, end, 1, body);
  Int item = begin + blockId();
  when(ir::lessThan(item, end), [&] { body(item); });
}

void Kernel::finish(Int status) {
  if (context.blocks())
    LLVM::ReturnOp::create(builder, env.loc, ValueRange());
  else
    LLVM::ReturnOp::create(builder, env.loc, status.value);
}

//===----------------------------------------------------------------------===//
// Control
//===----------------------------------------------------------------------===//

Values Kernel::loop(Int from, Int to, int64_t step, ValueRange init,
                    llvm::function_ref<Values(Int, ValueRange)> body) {
  auto op = scf::ForOp::create(builder, env.loc, from, to,
                               ir::constant(env, from.type(), step), init,
                               [](OpBuilder &, Location, Value, ValueRange) {});
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(op.getBody());
  Values next =
      body(Int(geometry, op.getInductionVar()), op.getRegionIterArgs());
  scf::YieldOp::create(builder, env.loc, next);
  return Values(op.getResults());
}

void Kernel::loop(Int from, Int to, int64_t step,
                  llvm::function_ref<void(Int)> body) {
  loop(from, to, step, ValueRange(), [&](Int i, ValueRange) {
    body(i);
    return Values();
  });
}

Values Kernel::share(int64_t count, ValueRange init,
                     llvm::function_ref<Values(Int, ValueRange)> body) {
  Int to = ir::i32(geometry, count);
  if (context.blocks())
    return loop(threadId(), to, context.target.threads, init, body);
  return loop(ir::i32(geometry, 0), to, 1, init, body);
}

void Kernel::share(int64_t count, llvm::function_ref<void(Int)> body) {
  share(count, ValueRange(), [&](Int i, ValueRange) {
    body(i);
    return Values();
  });
}

void Kernel::when(Bool condition, llvm::function_ref<void()> body) {
  auto op = scf::IfOp::create(builder, env.loc, condition.value,
                              /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(op.thenBlock());
  body();
}

Value Kernel::choose(Bool condition, Value otherwise,
                     llvm::function_ref<Value()> body) {
  auto op = scf::IfOp::create(builder, env.loc, otherwise.getType(),
                              condition.value, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(op.elseBlock());
  scf::YieldOp::create(builder, env.loc, otherwise);
  builder.setInsertionPointToStart(op.thenBlock());
  scf::YieldOp::create(builder, env.loc, body());
  return op.getResult(0);
}

void Kernel::once(llvm::function_ref<void()> body) {
  if (!context.blocks())
    return body();
  when(ir::equals(threadId(), ir::i32(env, 0)), body);
}

void Kernel::barrier() {
  if (context.blocks())
    NVVM::Barrier0Op::create(builder, env.loc);
}

Int Kernel::threadId() {
  return {geometry,
          NVVM::ThreadIdXOp::create(builder, env.loc, builder.getI32Type())};
}

Int Kernel::blockId() {
  Int id(geometry,
         NVVM::BlockIdXOp::create(builder, env.loc, builder.getI32Type()));
  return ir::toWidth(id, 64);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Value Kernel::at(Value base, Int bytes) {
  return LLVM::GEPOp::create(builder, env.loc, base.getType(),
                             builder.getI8Type(), base,
                             ValueRange{ir::toWidth(bytes, 64)});
}

static Type integers(OpBuilder &b, unsigned bits, int64_t lanes) {
  Type t = b.getIntegerType(bits);
  return lanes == 1 ? t : VectorType::get({lanes}, t);
}

Int Kernel::loadInt(Value p, unsigned bits, int64_t lanes) {
  // Vectors are aligned like their elements: arrays come from anywhere.
  Int v(env, LLVM::LoadOp::create(builder, env.loc,
                                  integers(builder, bits, lanes), p, bits / 8));
  return bits < 32 ? ir::toWidth(v, 32) : v;
}

void Kernel::storeInt(Value p, Int value, unsigned bits) {
  LLVM::StoreOp::create(builder, env.loc, ir::toWidth(value, bits), p,
                        bits / 8);
}

Float Kernel::loadFloat(Value p, Element e, int64_t lanes) {
  return codec::fromElementBits(e, loadInt(p, bitsOf(e), lanes));
}

void Kernel::storeFloat(Value p, Element e, Float x) {
  storeInt(p, codec::toElementBits(e, x), bitsOf(e));
}

Value Kernel::record(Value pool, Value pages, Int item, int64_t recordBytes) {
  int64_t heads = context.spec.kvHeads;
  Int page = loadInt(at(pages, item / heads * 4), 32);
  // Page numbers are checked by the caller: never negative.
  return at(pool, (ir::toWidth(page, 64) * heads + item % heads) * recordBytes);
}

//===----------------------------------------------------------------------===//
// Records
//===----------------------------------------------------------------------===//

SmallVector<Side, 2> storage::sidesOf(const Context &c) {
  int64_t bytes = bitsOf(c.spec.dtype) / 8;
  return {{c.image.key, Section::KCodes, Section::KScales, Section::KZeros,
           "k_scale", 0, 0},
          {c.image.value, Section::VCodes, Section::VScales, Section::VZeros,
           "v_scale", c.spec.format.page * c.spec.headDim * bytes, 1}};
}

Scales::Scales(Kernel &k, const Side &side, Value record, Int item)
    : k(k), side(side), record(record) {
  if (side.image.encoding.scale != ScaleKind::Tensor)
    return;
  Int head = item % k.context.spec.kvHeads;
  fixed =
      k.loadFloat(k.at(k.pointer(side.staticScale), head * 4), Element::F32);
}

static int64_t scaleBytes(const Side &side) {
  return bytesOf(side.image.encoding.scaleType);
}

Float Scales::load(Section section, Int index, int64_t lanes) {
  Int offset = index * scaleBytes(side) + k.context.image.offset(section);
  return k.loadFloat(k.at(record, offset),
                     codec::elementOf(side.image.encoding.scaleType), lanes);
}

void Scales::store(Section section, Int index, Float x) {
  Int offset = index * scaleBytes(side) + k.context.image.offset(section);
  k.storeFloat(k.at(record, offset),
               codec::elementOf(side.image.encoding.scaleType), x);
}

std::pair<Float, Float> Scales::of(Int token, Int channel, int64_t lanes) {
  // Lanes are neighbouring channels: scales of their own, or one for all.
  bool across = side.image.encoding.scale == ScaleKind::Channel;
  auto spread = [&](Float x) {
    return lanes == 1 || across ? x : ir::splat(x, lanes);
  };
  if (fixed.value)
    return {spread(fixed), spread(fixed)};
  Int index = side.image.scaleIndex(token, channel);
  int64_t loads = across ? lanes : 1;
  Float scale = spread(load(side.scales, index, loads));
  if (!side.image.encoding.asymmetric)
    return {scale, scale};
  return {scale, spread(load(side.zeros, index, loads))};
}

//===----------------------------------------------------------------------===//
// Codes
//===----------------------------------------------------------------------===//

Lanes Lanes::of(const Context &c, const TensorImage &image) {
  if (c.blocks() || image.family != ImageFamily::X86_64 ||
      !isInteger(image.encoding.element))
    return {};
  // Values: whole words of tokens, so that the next word is the next channel.
  if (image.isValue && image.page < image.slotsPerWord())
    return {};
  Lanes lanes =
      image.isValue ? Lanes{Words, 8} : Lanes{Slots, image.slotsPerWord()};
  bool shared = image.encoding.scale == ScaleKind::Token;
  return shared && image.groupSize() % lanes.count ? Lanes{} : lanes;
}

Int Lanes::shift(Kernel &k, const TensorImage &image, int64_t slot) const {
  auto bits = static_cast<int32_t>(image.bits());
  if (kind == None)
    return ir::i32(k.env, slot * bits);
  if (kind == Words)
    return ir::splat(ir::i32(k.env, slot * bits), count);
  SmallVector<int32_t> shifts(count);
  for (int64_t s = 0; s < count; ++s)
    shifts[image.element<int64_t>(0, s).channel] =
        static_cast<int32_t>(s) * bits;
  return ir::lanesOf(k.env, shifts);
}

void storage::visitCodes(Kernel &k, const Side &side, Value record, Int item,
                         llvm::function_ref<void(Int, Int, Float, Int)> visit) {
  const TensorImage &image = side.image;
  const Encoding &e = image.encoding;
  Lanes lanes = Lanes::of(k.context, image);
  Scales scales(k, side, record, item);
  Value codes =
      k.at(record, ir::i64(k.env, k.context.image.offset(side.codes)));
  k.share(image.codeWords() / lanes.words(), [&](Int step) {
    Int w = step * lanes.words();
    Int word = k.loadInt(k.at(codes, w * 4), 32, lanes.words());
    if (lanes.kind == Lanes::Slots)
      word = ir::splat(word, lanes.count);
    for (int64_t slot = 0; slot < lanes.slots(image); ++slot) {
      Int code = word >> lanes.shift(k, image, slot);
      if (image.bits() < 32)
        code = code & ((int64_t(1) << image.bits()) - 1);
      auto el = image.element(w, slot);
      if (isFloat(e.element)) {
        visit(el.token, el.channel, codec::fromElementBits(e.element, code),
              code);
        continue;
      }
      auto [scale, zero] = scales.of(el.token, el.channel, lanes.count);
      visit(el.token, el.channel, codec::decode(e, code, scale, zero), code);
    }
  });
}

LogicalResult kvcache::buildStorageKernels(ModuleOp module,
                                           const KernelSpec &spec,
                                           const StorageTarget &target) {
  KernelSpec checked = spec;
  if (auto bad = checked.verify())
    return module.emitError() << bad->message;
  auto image = PageImage::create(checked.format, checked.headDim,
                                 checked.valueDim, target.family);
  if (auto *bad = errorOf(image))
    return module.emitError() << bad->message;
  MLIRContext *mlirContext = module.getContext();
  mlirContext
      ->loadDialect<arith::ArithDialect, LLVM::LLVMDialect, math::MathDialect,
                    NVVM::NVVMDialect, scf::SCFDialect>();
  Context context{checked, target, std::get<PageImage>(image), module};
  buildAppend(context);
  buildSeal(context);
  buildUnseal(context);
  buildRead(context);
  return success();
}
