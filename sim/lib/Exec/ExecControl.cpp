//===- ExecControl.cpp - Branches, calls, returns -------------------------===//
#include "Lanes.h"

namespace kvcache::sim::KVSIM_TIER {

static uint32_t pcOf(const Ctx &c, const Instr &I) {
  return uint32_t(&I - c.frame->code->instrs.data());
}

static void countDivergence(Ctx &c, const Instr &I) {
  if (!c.stats->instr.empty())
    c.stats->instr[I.id].divergent += 1;
}

/// Puts the lanes of `m` of the current split at `pc` as a split of their own.
static void fork(Ctx &c, uint32_t m, uint32_t pc) {
  Split s = *c.split;
  s.mask = m;
  s.pc = pc;
  s.state = SplitState::Ready;
  s.forced = false;
  ++s.frame->refs;
  c.split->mask &= ~m;
  c.warp->splits.push_back(s); // c.split may dangle from here on
  c.split = &c.warp->splits[c.warp->current];
}

static Act execBra(Ctx &c, const Instr &I, uint32_t m) {
  if (m == 0)
    return Act::Next;
  if (m == c.split->mask) {
    c.split->pc = I.target;
    return Act::Jump;
  }
  countDivergence(c, I);
  c.split->pc = pcOf(c, I) + 1;
  fork(c, m, I.target);
  return Act::Jump;
}

static void branch(Instr &I, uint32_t target) {
  I.fn = execBra;
  I.shadow = nullptr;
  I.target = target;
  I.imm = INT64_MIN; // a PTX index until the function is decoded
  I.always = true;
  I.matters = I.branch = true;
  I.cls = OpClass::Control;
}

static void decodeBra(Decoder &D, Instr &I) {
  D.take("uni");
  D.needOps(1, 1);
  branch(I, D.label(D.op(0)));
  D.finish(I, {}, {});
}

static Act execBrx(Ctx &c, const Instr &I, uint32_t m) {
  const auto &targets = *static_cast<const std::vector<uint32_t> *>(I.ext);
  const uint32_t *index = c.in<uint32_t>(I.o[0]);
  uint32_t next = pcOf(c, I) + 1, stay = c.split->mask & ~m;
  bool moved = false;
  uint32_t todo = m;
  if (m == 0)
    return Act::Next;
  if (c.init && isTainted(c, I.o[0], m))
    c.violation("init", I, std::countr_zero(m), 0,
                "branch target depends on an undefined value");
  while (todo) {
    int l = std::countr_zero(todo);
    uint32_t v = index[l], group = 0;
    KVSIM_EACH(todo) group |= uint32_t(index[l] == v) << l;
    todo &= ~group;
    if (v >= targets.size())
      c.violation("bounds", I, l, v, "'brx' index is outside the target list");
    if (!moved && !stay) {
      moved = true;
      c.split->pc = targets[v];
      if (!todo)
        return Act::Jump;
      continue;
    }
    fork(c, group, targets[v]);
  }
  if (stay)
    c.split->pc = next;
  countDivergence(c, I);
  return Act::Jump;
}

static void decodeBrx(Decoder &D, Instr &I) {
  if (!D.take("idx"))
    D.error("'brx' needs .idx");
  D.take("uni");
  D.needOps(2, 2);
  const LabelledList *list = D.list(D.op(1));
  if (!list || list->isPrototype)
    D.error("unknown target list '" + D.op(1).name + "'");
  std::vector<uint32_t> targets;
  for (const std::string &n : list->labels)
    targets.push_back(D.label(n, list->scope));
  auto *t = D.extra(targets);
  D.targetTables.push_back(t);
  I.ext = t;
  I.fn = execBrx;
  I.shadow = nullptr;
  I.always = I.matters = true;
  I.cls = OpClass::Control;
  D.finish(I, {}, {D.src(D.op(0), "u32")});
}

/// Lanes leave the kernel.
static Act leave(Ctx &c, const Instr &I, uint32_t m) {
  if (m == 0)
    return Act::Next;
  Warp &w = *c.warp;
  w.live &= ~m;
  if (w.live == 0)
    --c.block->liveWarps;
  c.split->mask &= ~m;
  bool gone = c.split->mask == 0;
  if (gone) {
    dropFrame(c.split->frame);
    w.splits.erase(w.splits.begin() + w.current);
    w.current = 0;
  }
  c.block->threadsExited(c, std::popcount(m));
  return gone ? Act::Gone : Act::Next;
}

struct CallExt {
  const Code *callee = nullptr;
  bool builtin = false;                    ///< vprintf and the like: no effect
  std::vector<Code::ParamSlot> args, rets; ///< in the caller's frame
};

static void copyParams(const Frame *from, const std::vector<Code::ParamSlot> &a,
                       Frame *to, const std::vector<Code::ParamSlot> &b,
                       uint32_t m, bool init) {
  size_t n = a.size() < b.size() ? a.size() : b.size();
  for (size_t i = 0; i < n; ++i) {
    int bytes = a[i].bytes < b[i].bytes ? a[i].bytes : b[i].bytes;
    KVSIM_EACH(m) {
      size_t x = size_t(l) * from->code->paramBytes + a[i].offset;
      size_t y = size_t(l) * to->code->paramBytes + b[i].offset;
      std::memcpy(to->params + y, from->params + x, size_t(bytes));
      if (init)
        std::memcpy(to->paramUndef + y, from->paramUndef + x, size_t(bytes));
    }
  }
}

static Act execRet(Ctx &c, const Instr &I, uint32_t m) {
  Frame *f = c.frame;
  if (!f->parent)
    return leave(c, I, m);
  if (m == 0)
    return Act::Next;
  const auto &x = *static_cast<const CallExt *>(f->callSite->ext);
  copyParams(f, f->code->returns, f->parent, x.rets, m, c.init);
  Frame *parent = f->parent;
  ++parent->refs;
  if (m != c.split->mask) {
    // The rest goes on behind the return.
    c.split->pc = pcOf(c, I) + 1;
    fork(c, m, f->returnPc);
    Split &s = c.warp->splits.back();
    s.frame = parent;
    dropFrame(f);
    return Act::Jump;
  }
  c.split->frame = parent;
  c.split->pc = f->returnPc;
  dropFrame(f);
  return Act::Jump;
}

static Act execExit(Ctx &c, const Instr &I, uint32_t m) {
  return leave(c, I, m);
}

static void enter(Ctx &c, const Instr &I, const Code *callee, uint32_t m) {
  const auto &x = *static_cast<const CallExt *>(I.ext);
  if (c.frame->depth >= 200)
    c.violation("bounds", I, std::countr_zero(m), 0,
                "calls are nested too deeply");
  if (int64_t(c.frame->localBase) + c.frame->code->localBytes +
          callee->localBytes >
      c.grid->localBytes)
    c.violation("bounds", I, std::countr_zero(m), 0, "the stack overflows");
  Frame *f = makeFrame(c, callee, c.frame, pcOf(c, I) + 1);
  f->callSite = &I;
  copyParams(c.frame, x.args, f, callee->params, m, c.init);
  Split &s = *c.split;
  Frame *old = s.frame;
  s.frame = f;
  s.pc = 0;
  dropFrame(old); // the new frame holds its parent
}

static Act execCall(Ctx &c, const Instr &I, uint32_t m) {
  if (m == 0)
    return Act::Next;
  const auto &x = *static_cast<const CallExt *>(I.ext);
  if (x.builtin) {
    for (const Code::ParamSlot &r : x.rets)
      KVSIM_EACH(m) {
        size_t at = size_t(l) * c.frame->code->paramBytes + r.offset;
        std::memset(c.frame->params + at, 0, size_t(r.bytes));
        if (c.init)
          std::memset(c.frame->paramUndef + at, 0, size_t(r.bytes));
      }
    return Act::Next;
  }
  if (m != c.split->mask)
    fork(c, c.split->mask & ~m, pcOf(c, I) + 1);
  if (x.callee) {
    enter(c, I, x.callee, m);
    return Act::Jump;
  }
  if (c.init && isTainted(c, I.o[0], m))
    c.violation("init", I, std::countr_zero(m), 0,
                "call target depends on an undefined value");
  const uint64_t *target = c.in<uint64_t>(I.o[0]);
  uint64_t first = target[std::countr_zero(m)];
  uint32_t group = 0;
  KVSIM_EACH(m) group |= uint32_t(target[l] == first) << l;
  const Code *callee = c.grid->function(first);
  if (!callee || callee == c.grid->entry)
    c.violation("bounds", I, std::countr_zero(m), first,
                "indirect call of an address that is no function");
  if (callee->params.size() != x.args.size() ||
      callee->returns.size() != x.rets.size())
    c.violation(
        "bounds", I, std::countr_zero(m), first,
        "indirect call with a prototype that differs from the function");
  if (group != m) // the others call theirs when this split is chosen again
    fork(c, m & ~group, pcOf(c, I));
  enter(c, I, callee, group);
  return Act::Jump;
}

static std::vector<Code::ParamSlot> callSlots(Decoder &D, const Operand &list) {
  std::vector<Code::ParamSlot> out;
  for (const Operand &o : list.elems) {
    MemSpace sp;
    int64_t v;
    if (o.kind != Operand::Sym || !D.symbol(o, sp, v) || sp != MemSpace::FParam)
      D.error("arguments of 'call' must be '.param' variables of the function");
    int32_t bytes = 0;
    for (const Variable &x : D.fn.vars)
      if (x.name == o.name)
        bytes = int32_t(x.bytes);
    for (const Variable &x : D.fn.params)
      if (x.name == o.name && !bytes)
        bytes = int32_t(x.bytes);
    for (const Variable &x : D.fn.returns)
      if (x.name == o.name && !bytes)
        bytes = int32_t(x.bytes);
    out.push_back({int32_t(v), bytes});
  }
  return out;
}

static void decodeCall(Decoder &D, Instr &I) {
  D.take("uni");
  size_t i = 0;
  CallExt x;
  if (D.op(0).kind == Operand::List)
    x.rets = callSlots(D, D.op(i++));
  const Operand &target = D.op(i++);
  if (i < D.count() && D.op(i).kind == Operand::List)
    x.args = callSlots(D, D.op(i++));
  I.fn = execCall;
  I.shadow = nullptr;
  I.always = I.matters = true;
  I.cls = OpClass::Control;
  if (target.kind == Operand::Sym) {
    auto it = D.program.byName.find(target.name);
    if (it != D.program.byName.end()) {
      x.callee = it->second;
      if (x.callee->fn->isEntry)
        D.error("an entry cannot be called");
      if (x.callee->fn->params.size() != x.args.size() ||
          x.callee->fn->returns.size() != x.rets.size())
        D.error("call of '" + target.name + "' with " +
                std::to_string(x.args.size()) + " arguments and " +
                std::to_string(x.rets.size()) + " results, it has " +
                std::to_string(x.callee->fn->params.size()) + " and " +
                std::to_string(x.callee->fn->returns.size()));
    } else if (target.name == "__assertfail") {
      I.fn = [](Ctx &c, const Instr &I, uint32_t m) -> Act {
        if (m)
          c.violation("trap", I, std::countr_zero(m), 0,
                      "an assertion of the kernel failed");
        return Act::Next;
      };
    } else if (target.name == "vprintf") {
      x.builtin = true;
    } else {
      D.error("call of undefined function '" + target.name + "'");
    }
    D.finish(I, {}, {});
  } else {
    if (i >= D.count())
      D.error("an indirect call needs a prototype");
    D.finish(I, {}, {D.src(target, "u64")});
  }
  I.ext = D.extra(x);
}

static void decodeLeave(Decoder &D, Instr &I) {
  D.take("uni");
  D.needOps(0, 0);
  I.fn = D.in->op == "ret" ? execRet : execExit;
  I.shadow = nullptr;
  I.always = I.matters = true;
  I.cls = OpClass::Control;
  D.finish(I, {}, {});
}

static void decodeTrap(Decoder &D, Instr &I) {
  I.fn = [](Ctx &c, const Instr &I, uint32_t m) -> Act {
    c.violation("trap", I, std::countr_zero(m), 0,
                "the kernel executed a trap");
  };
  I.matters = true;
  I.cls = OpClass::Control;
  I.shadow = nullptr;
  D.finish(I, {}, {});
}

static Act execNothing(Ctx &, const Instr &, uint32_t) { return Act::Next; }

/// Hints and debugging aids without effect here.
static void decodeNothing(Decoder &D, Instr &I) {
  D.takeRest();
  I.fn = execNothing;
  I.shadow = nullptr;
  D.finish(I, {}, {});
}

void addControl(Table &t) {
  t.add("bra", decodeBra);
  t.add("brx", decodeBrx);
  t.add("call", decodeCall);
  t.add("ret", decodeLeave);
  t.add("exit", decodeLeave);
  t.add("trap", decodeTrap);
  t.add("brkpt", decodeTrap);
  t.add("pmevent", decodeNothing);
  t.add("setmaxnreg", [](Decoder &D, Instr &I) {
    decodeNothing(D, I);
    D.needSm(I, 90, true);
  });
  t.add("griddepcontrol", [](Decoder &D, Instr &I) {
    decodeNothing(D, I);
    D.needSm(I, 90);
  });
  t.add("nanosleep", [](Decoder &D, Instr &I) {
    D.type();
    D.needOps(1, 1);
    I.fn = [](Ctx &, const Instr &, uint32_t) { return Act::Yield; };
    I.shadow = nullptr;
    D.finish(I, {}, {D.src(D.op(0), "u32")});
  });
}

} // namespace kvcache::sim::KVSIM_TIER
