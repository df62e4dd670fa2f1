//===- VerifyLinear.cpp - No use of a cache after it was replaced ---------===//
//
// A forward data-flow over every function. The state at a point is
//   replaced  the cache values that must not be used any more, and by which op
//   shares    which values may be the same cache (block arguments, loop-carried
//             values, selects), as unordered pairs
// `append` and `seal` replace their operand and all that shares with it;
// passing a value to a block or region argument makes the argument share with
// it and inherit its state; executing an op defines its results anew. Paths
// join by union, loops run to the fixed point. Calls replace the operands that
// the callee replaces, all of them if it is unknown or recursive.
//
//===----------------------------------------------------------------------===//
#include "kvcache/Dialect/KVCache/Transforms/Passes.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/CallInterfaces.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace kvcache {

#define GEN_PASS_DEF_VERIFYLINEARPASS
#include "kvcache/Dialect/KVCache/Transforms/Passes.h.inc"

namespace {

struct State {
  bool reached = false;
  llvm::MapVector<Value, Operation *> replaced;
  llvm::SetVector<std::pair<Value, Value>> shares;

  bool share(Value a, Value b) const {
    return a == b || shares.contains({a, b}) || shares.contains({b, a});
  }
  /// The value is defined anew.
  void define(Value v) {
    replaced.erase(v);
    shares.remove_if(
        [&](const auto &pair) { return pair.first == v || pair.second == v; });
  }
  void replace(Value v, Operation *by) {
    SmallVector<Value> all = {v};
    for (auto [a, b] : shares) {
      if (a == v)
        all.push_back(b);
      if (b == v)
        all.push_back(a);
    }
    for (Value value : all)
      replaced.insert({value, by});
  }
  /// `to` may be `from` from now on.
  void pass(Value from, Value to, const State &before) {
    if (auto it = before.replaced.find(from); it != before.replaced.end())
      replaced.insert({to, it->second});
    shares.insert({from, to});
    for (auto [a, b] : before.shares) {
      if (a == from && b != to)
        shares.insert({b, to});
      if (b == from && a != to)
        shares.insert({a, to});
    }
  }
  /// True if anything was new.
  bool join(const State &other) {
    if (!other.reached)
      return false;
    bool changed = !reached;
    reached = true;
    for (auto entry : other.replaced)
      changed |= replaced.insert(entry).second;
    for (auto pair : other.shares)
      changed |= shares.insert(pair);
    return changed;
  }
};

/// The analysis of one function-like op. `report` is null while a callee is
/// only summarised.
class Linear {
public:
  Linear(Operation *root, SymbolTableCollection &symbols,
         llvm::SetVector<Operation *> &active,
         llvm::SetVector<std::pair<Operation *, Operation *>> *reported)
      : root(root), symbols(symbols), active(active), reported(reported) {}

  /// Runs over the regions; returns the state at their ends.
  State run() {
    State state, exit;
    state.reached = true;
    for (Region &region : root->getRegions())
      exit.join(region.empty() ? state : runRegion(region, state, nullptr));
    return exit;
  }

  bool failed() const { return errors; }

private:
  static bool isCache(Value value) { return isa<CacheType>(value.getType()); }

  /// Entering `inputs` with `operands`, from `before` (all at once: swaps).
  static State enter(const State &before, ValueRange operands,
                     ValueRange inputs) {
    State after = before;
    for (Value input : inputs)
      if (isCache(input))
        after.define(input);
    SmallVector<std::pair<Value, Value>> passed;
    for (auto [operand, input] : llvm::zip(operands, inputs))
      if (isCache(input) && isCache(operand))
        passed.push_back({operand, input});
    for (auto [operand, input] : passed)
      after.pass(operand, input, before);
    // One cache passed twice makes both inputs the same.
    for (auto [i, first] : llvm::enumerate(passed))
      for (auto second : llvm::drop_begin(passed, i + 1))
        if (before.share(first.first, second.first))
          after.shares.insert({first.second, second.second});
    return after;
  }

  void checkUses(Operation *op, const State &state) {
    for (Value operand : op->getOperands()) {
      auto it = state.replaced.find(operand);
      if (it == state.replaced.end())
        continue;
      complain(op, it->second,
               "uses a cache that was replaced: use the result of '" +
                   it->second->getName().getStringRef() + "' instead");
    }
  }

  /// One error for each pair, however often the analysis meets it.
  void complain(Operation *op, Operation *by, const Twine &message) {
    errors = true;
    if (reported && reported->insert({op, by}))
      op->emitOpError(message).attachNote(by->getLoc()) << "replaced here";
  }

  /// Blocks to the fixed point. `exits` receives the state before each region
  /// terminator; the result is their join.
  State runRegion(Region &region, State entry,
                  llvm::MapVector<Operation *, State> *exits) {
    llvm::MapVector<Block *, State> in;
    State out;
    in[&region.front()].join(entry);
    llvm::SetVector<Block *> work;
    work.insert(&region.front());
    while (!work.empty()) {
      Block *block = work.front();
      work.erase(work.begin());
      State state = in[block];
      for (Operation &op : *block)
        transfer(&op, state);
      Operation *last = block->empty() ? nullptr : &block->back();
      auto branch = dyn_cast_or_null<BranchOpInterface>(last);
      for (unsigned i = 0, e = last ? last->getNumSuccessors() : 0; i < e;
           ++i) {
        Block *successor = last->getSuccessor(i);
        State next = state;
        if (branch) {
          SuccessorOperands operands = branch.getSuccessorOperands(i);
          unsigned produced = operands.getProducedOperandCount();
          next = enter(state, operands.getForwardedOperands(),
                       successor->getArguments().drop_front(produced));
        }
        if (in[successor].join(next))
          work.insert(successor);
      }
      if (last && last->getNumSuccessors() == 0) {
        out.join(state);
        if (exits)
          (*exits)[last].join(state);
      }
    }
    return out;
  }

  void transfer(Operation *op, State &state) {
    checkUses(op, state);
    if (auto append = dyn_cast<AppendOp>(op))
      state.replace(append.getCache(), op);
    else if (auto seal = dyn_cast<SealOp>(op))
      state.replace(seal.getCache(), op);
    else if (auto call = dyn_cast<CallOpInterface>(op))
      transferCall(call, state);
    else if (auto branch = dyn_cast<RegionBranchOpInterface>(op))
      return transferRegions(branch, state);
    else if (op->getNumRegions() != 0)
      transferUnknownRegions(op, state);
    defineResults(op, state);
  }

  /// Results of ops that are not ours may be any of their cache operands.
  void defineResults(Operation *op, State &state) {
    SmallVector<Value> results, operands;
    llvm::copy_if(op->getResults(), std::back_inserter(results), isCache);
    if (results.empty())
      return;
    for (Value result : results)
      state.define(result);
    if (isa<AppendOp, SealOp, ViewOp>(op))
      return;
    State before = state;
    for (Value operand : op->getOperands())
      if (isCache(operand) && !before.replaced.contains(operand))
        operands.push_back(operand);
    for (Value result : results)
      for (Value operand : operands)
        state.pass(operand, result, before);
    for (auto [i, first] : llvm::enumerate(results))
      for (Value second : llvm::drop_begin(results, i + 1))
        state.shares.insert({first, second});
  }

  void transferCall(CallOpInterface call, State &state) {
    Operation *callee = call.resolveCallableInTable(&symbols);
    OperandRange arguments = call.getArgOperands();
    for (auto [i, operand] : llvm::enumerate(arguments)) {
      if (!isCache(operand) || !calleeReplaces(callee, i))
        continue;
      for (auto [j, other] : llvm::enumerate(arguments))
        if (j != i && isCache(other) && state.share(operand, other))
          complain(call, call,
                   "passes a cache twice to a call that replaces it");
      state.replace(operand, call);
    }
  }

  bool calleeReplaces(Operation *callee, unsigned argument) {
    auto function = dyn_cast_or_null<FunctionOpInterface>(callee);
    if (!function || function.isExternal() || active.contains(callee) ||
        argument >= function.getNumArguments())
      return true;
    active.insert(callee);
    Linear inner(callee, symbols, active, /*reported=*/nullptr);
    State exit = inner.run();
    active.remove(callee);
    return exit.replaced.contains(function.getArgument(argument));
  }

  /// Regions of an op that says how they run.
  void transferRegions(RegionBranchOpInterface op, State &state) {
    llvm::MapVector<Region *, State> in;
    State after;
    llvm::SetVector<Region *> work;
    auto branch = [&](RegionBranchPoint point, const State &from) {
      SmallVector<RegionSuccessor> successors;
      op.getSuccessorRegions(point, successors);
      for (RegionSuccessor &successor : successors) {
        State next = enter(from, op.getSuccessorOperands(point, successor),
                           successor.getSuccessorInputs());
        if (successor.isParent())
          after.join(next);
        else if (in[successor.getSuccessor()].join(next))
          work.insert(successor.getSuccessor());
      }
    };
    branch(RegionBranchPoint::parent(), state);
    while (!work.empty()) {
      Region *region = work.front();
      work.erase(work.begin());
      if (region->empty())
        continue;
      llvm::MapVector<Operation *, State> exits;
      State entry = in[region];
      runRegion(*region, entry, &exits);
      for (auto &[terminator, exit] : exits)
        if (auto end = dyn_cast<RegionBranchTerminatorOpInterface>(terminator))
          branch(RegionBranchPoint(end), exit);
    }
    state = after;
  }

  /// Regions of an op that does not: any of them, any number of times.
  void transferUnknownRegions(Operation *op, State &state) {
    if (op->hasTrait<OpTrait::IsIsolatedFromAbove>())
      return;
    bool changed = true;
    while (changed) {
      changed = false;
      for (Region &region : op->getRegions())
        if (!region.empty())
          changed |= state.join(runRegion(region, state, nullptr));
    }
  }

  Operation *root;
  SymbolTableCollection &symbols;
  llvm::SetVector<Operation *> &active;
  llvm::SetVector<std::pair<Operation *, Operation *>> *reported;
  bool errors = false;
};

} // namespace

LogicalResult verifyLinear(Operation *root) {
  SymbolTableCollection symbols;
  llvm::SetVector<std::pair<Operation *, Operation *>> reported;
  bool failed = false;
  root->walk([&](Operation *op) {
    // Each isolated op is a world of its own: functions, modules, kernels.
    if (!op->hasTrait<OpTrait::IsIsolatedFromAbove>() ||
        op->getNumRegions() == 0)
      return;
    llvm::SetVector<Operation *> active;
    active.insert(op);
    Linear linear(op, symbols, active, &reported);
    linear.run();
    failed |= linear.failed();
  });
  return failure(failed);
}

namespace {
struct VerifyLinearPass : impl::VerifyLinearPassBase<VerifyLinearPass> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    if (failed(verifyLinear(getOperation())))
      signalPassFailure();
  }
};
} // namespace

} // namespace kvcache
