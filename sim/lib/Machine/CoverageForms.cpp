//===- CoverageForms.cpp - The forms of the coverage table ----------------===//
#include "CoverageForms.h"

namespace kvcache::sim {

static const std::vector<std::string> none{""};
static const std::vector<std::string> i16{"s16", "u16"};
static const std::vector<std::string> i32{"s32", "u32"};
static const std::vector<std::string> i64{"s64", "u64"};

/// Integer, bit and float arithmetic.
static void arithmetic(std::vector<CoverageForm> &v) {
  for (const char *op : {"add", "sub", "min", "max", "div", "rem"}) {
    std::string o = op;
    if (o != "div" && o != "rem") {
      v.push_back({o + ".$ %h0,%h1,%h2", {"s16", "u16", "f16", "bf16"}});
      v.push_back(
          {o + ".$ %r0,%r1,%r2", {"f16x2", "bf16x2", "s16x2", "u16x2"}});
    }
    v.push_back({o + ".$ %r0,%r1,%r2", i32});
    v.push_back({o + ".$ %w0,%w1,%w2", i64});
  }
  for (const char *op : {"mul.lo", "mul.hi"}) {
    std::string o = op;
    v.push_back({o + ".$ %h0,%h1,%h2", i16});
    v.push_back({o + ".$ %r0,%r1,%r2", i32});
    v.push_back({o + ".$ %w0,%w1,%w2", i64});
  }
  v.push_back({"mul.wide.$ %w0,%r1,%r2", i32});
  v.push_back({"mul.wide.$ %r0,%h1,%h2", i16});
  v.push_back({"mad.wide.$ %w0,%r1,%r2,%w3", i32});
  v.push_back({"mad.lo.$ %r0,%r1,%r2,%r3", i32});
  v.push_back({"mad.hi.$ %r0,%r1,%r2,%r3", i32});
  v.push_back({"mad.lo.$ %w0,%w1,%w2,%w3", i64});
  for (const char *op :
       {"add.cc", "addc", "addc.cc", "sub.cc", "subc", "subc.cc"}) {
    v.push_back({std::string(op) + ".$ %r0,%r1,%r2", i32});
    v.push_back({std::string(op) + ".$ %w0,%w1,%w2", i64});
  }
  for (const char *op :
       {"mad.lo.cc", "mad.hi.cc", "madc.lo", "madc.lo.cc", "madc.hi"})
    v.push_back({std::string(op) + ".$ %r0,%r1,%r2,%r3", i32});
  v.push_back({"sad.$ %r0,%r1,%r2,%r3", i32});
  v.push_back({"mul24.lo.$ %r0,%r1,%r2", i32});
  v.push_back({"dp4a.$.s32 %r0,%r1,%r2,%r3", i32});
  v.push_back({"dp2a.lo.$.u32 %r0,%r1,%r2,%r3", i32});
  v.push_back({"abs.$ %r0,%r1", {"s32", "f16x2", "bf16x2"}});
  v.push_back({"neg.$ %r0,%r1", {"s32", "f16x2", "bf16x2"}});
  for (const char *op : {"and", "or", "xor"}) {
    v.push_back({std::string(op) + ".$ %h0,%h1,%h2", {"b16"}});
    v.push_back({std::string(op) + ".$ %r0,%r1,%r2", {"b32"}});
    v.push_back({std::string(op) + ".$ %w0,%w1,%w2", {"b64"}});
    v.push_back({std::string(op) + ".$ %p0,%p1,%p2", {"pred"}});
  }
  for (const char *op : {"not", "cnot", "popc", "clz", "brev"})
    v.push_back({std::string(op) + ".$ %r0,%r1", {"b32"}});
  for (const char *op : {"bfind", "bfind.shiftamt"})
    v.push_back({std::string(op) + ".$ %r0,%r1", i32});
  v.push_back({"shl.$ %r0,%r1,%r2", {"b32"}});
  v.push_back({"shr.$ %r0,%r1,%r2", {"b32", "s32", "u32"}});
  v.push_back({"shf.l.wrap.$ %r0,%r1,%r2,%r3", {"b32"}});
  v.push_back({"shf.r.clamp.$ %r0,%r1,%r2,%r3", {"b32"}});
  v.push_back({"lop3.$ %r0,%r1,%r2,%r3,0x96", {"b32"}});
  v.push_back({"prmt.$ %r0,%r1,%r2,%r3", {"b32"}});
  v.push_back({"prmt.$.f4e %r0,%r1,%r2,%r3", {"b32"}});
  v.push_back({"bfe.$ %r0,%r1,%r2,%r3", i32});
  v.push_back({"bfe.$ %w0,%w1,%r2,%r3", i64});
  v.push_back({"bfi.$ %r0,%r1,%r2,%r3,%r4", {"b32"}});
  v.push_back({"bmsk.clamp.$ %r0,%r1,%r2", {"b32"}});
  v.push_back({"szext.wrap.$ %r0,%r1,%r2", i32});
  v.push_back({"fns.$ %r0,%r1,%r2,%r3", {"b32"}});
  v.push_back({"vabsdiff4.u32.u32.u32 %r0,%r1,%r2,%r3", none});
  v.push_back({"vadd.s32.s32.s32 %r0,%r1,%r2", none});
  for (const char *r : {"", ".rn", ".rz", ".rm", ".rp", ".ftz", ".sat"})
    for (const char *op : {"add", "mul"})
      v.push_back({std::string(op) + r + ".$ %f0,%f1,%f2", {"f32"}});
  for (const char *r : {".rn", ".rz", ".rm", ".rp"}) {
    v.push_back({std::string("fma") + r + ".$ %f0,%f1,%f2,%f3", {"f32"}});
    v.push_back({std::string("fma") + r + ".$ %d0,%d1,%d2,%d3", {"f64"}});
    v.push_back({std::string("div") + r + ".$ %f0,%f1,%f2", {"f32"}});
    v.push_back({std::string("sqrt") + r + ".$ %d0,%d1", {"f64"}});
    v.push_back({std::string("rcp") + r + ".$ %f0,%f1", {"f32"}});
  }
  v.push_back({"fma.rn.$ %h0,%h1,%h2,%h3", {"f16", "bf16"}});
  v.push_back({"fma.rn.relu.$ %r0,%r1,%r2,%r3", {"f16x2", "bf16x2"}});
  v.push_back({"fma.rn.$ %w0,%w1,%w2,%w3", {"f32x2"}});
  v.push_back({"min.NaN.$ %f0,%f1,%f2", {"f32"}});
  v.push_back({"max.xorsign.abs.$ %f0,%f1,%f2", {"f32"}});
  v.push_back({"copysign.$ %f0,%f1,%f2", {"f32"}});
  v.push_back({"testp.finite.$ %p0,%f1", {"f32"}});
  for (const char *op : {"ex2.approx", "lg2.approx", "sin.approx", "cos.approx",
                         "tanh.approx", "rcp.approx", "rsqrt.approx",
                         "sqrt.approx", "ex2.approx.ftz", "rcp.approx.ftz"})
    v.push_back({std::string(op) + ".$ %f0,%f1", {"f32"}});
  v.push_back({"ex2.approx.$ %r0,%r1", {"f16x2"}});
  v.push_back({"tanh.approx.$ %r0,%r1", {"f16x2", "bf16x2"}});
  v.push_back({"rcp.approx.ftz.$ %d0,%d1", {"f64"}});
}

/// Comparison, conversion, movement.
static void movement(std::vector<CoverageForm> &v) {
  for (const char *c : {"eq", "ne", "lt", "le", "gt", "ge"}) {
    v.push_back({std::string("setp.") + c + ".$ %p0,%r1,%r2", {"s32", "u32"}});
    v.push_back({std::string("setp.") + c + ".$ %p0,%f1,%f2", {"f32"}});
  }
  for (const char *c : {"equ", "ltu", "num", "nan"})
    v.push_back({std::string("setp.") + c + ".$ %p0|%p1,%f1,%f2", {"f32"}});
  v.push_back({"setp.lt.and.$ %p0,%r1,%r2,%p3", {"s32"}});
  v.push_back({"setp.gt.$ %p0|%p1,%r1,%r2", {"f16x2", "bf16x2"}});
  v.push_back({"set.lt.u32.$ %r0,%r1,%r2", {"s32", "f16x2"}});
  v.push_back({"selp.$ %r0,%r1,%r2,%p0", {"b32", "s32", "u32"}});
  v.push_back({"slct.$.s32 %r0,%r1,%r2,%r3", {"b32"}});
  for (const char *c : {"rn.f16", "rz.f16", "rn.bf16", "rz.bf16"})
    v.push_back({std::string("cvt.") + c + ".$ %h0,%f1", {"f32"}});
  for (const char *c : {"rni.s32", "rzi.u32", "rmi.s32", "rpi.s32", "rna.tf32"})
    v.push_back({std::string("cvt.") + c + ".$ %r0,%f1", {"f32"}});
  v.push_back({"cvt.rn.f32.$ %f0,%r1", i32});
  v.push_back({"cvt.rn.f64.$ %d0,%w1", i64});
  v.push_back({"cvt.f32.$ %f0,%h1", {"f16", "bf16"}});
  v.push_back({"cvt.$.s32 %h0,%r1", {"s8", "u8", "s16"}});
  v.push_back({"cvt.sat.$.s32 %r0,%r1", {"s8", "u8"}});
  v.push_back({"cvt.rn.$.f32 %r0,%f1,%f2", {"f16x2", "bf16x2"}});
  v.push_back(
      {"cvt.rn.satfinite.$.f32 %h0,%f1,%f2", {"e4m3x2", "e5m2x2", "e2m1x2"}});
  v.push_back({"cvt.rn.f16x2.$ %r0,%h1", {"e4m3x2", "e5m2x2"}});
  v.push_back({"cvt.rn.satfinite.$.f16x2 %h0,%r1", {"e4m3x2", "e5m2x2"}});
  v.push_back({"cvt.pack.sat.u8.s32.b32 %r0,%r1,%r2,%r3", none});
  v.push_back({"mov.$ %r0,%r1", {"b32", "u32", "s32"}});
  v.push_back({"mov.$ {%h0,%h1},%r1", {"b32"}});
  v.push_back({"mov.$ %w0,{%r0,%r1}", {"b64"}});
  v.push_back({"mov.$ %q0,{%w0,%w1}", {"b128"}});
  v.push_back({"cvta.shared.$ %w0,%w1", {"u64"}});
  v.push_back({"cvta.to.global.$ %w0,%w1", {"u64"}});
  v.push_back({"isspacep.shared %p0,%w1", none});
  v.push_back({"mapa.shared::cluster.$ %r0,%r1,%r2", {"u32"}});
  v.push_back({"getctarank.shared::cluster.$ %r0,%r1", {"u32"}});
}

/// Memory, atomics, synchronisation.
static void memory(std::vector<CoverageForm> &v) {
  for (const char *s :
       {"global", "shared", "local", "const", "shared::cluster"})
    v.push_back({std::string("ld.") + s + ".$ %r0,[%w1]", {"b32"}});
  v.push_back(
      {"ld.global.nc.L1::no_allocate.L2::128B.v4.$ {%r0,%r1,%r2,%r3},[%w1]",
       {"b32"}});
  v.push_back({"ld.global.v2.$ {%w0,%w1},[%w2]", {"b64"}});
  v.push_back({"ld.global.v8.$ {r*8},[%w2]", {"b32"}});
  v.push_back({"ld.global.$ %h0,[%w1]", {"u8", "s8", "b16"}});
  v.push_back({"ld.global.$ %q0,[%w1]", {"b128"}});
  v.push_back({"ld.acquire.gpu.global.$ %r0,[%w1]", {"b32"}});
  v.push_back({"st.release.sys.global.$ [%w1],%r0", {"b32"}});
  v.push_back({"st.volatile.shared.$ [m],%r0", {"b32"}});
  for (const char *op : {"add", "min", "max"})
    v.push_back({std::string("atom.global.") + op + ".$ %r0,[%w1],%r2", i32});
  for (const char *op : {"and", "or", "xor", "exch"})
    v.push_back({std::string("atom.shared.") + op + ".$ %r0,[m],%r2", {"b32"}});
  v.push_back({"atom.global.add.$ %f0,[%w1],%f2", {"f32"}});
  v.push_back({"atom.global.add.$ %d0,[%w1],%d2", {"f64"}});
  v.push_back({"atom.global.add.noftz.$ %r0,[%w1],%r2", {"f16x2", "bf16x2"}});
  v.push_back({"atom.global.add.noftz.$ %h0,[%w1],%h2", {"f16", "bf16"}});
  v.push_back({"atom.acq_rel.gpu.global.cas.$ %r0,[%w1],%r2,%r3", {"b32"}});
  v.push_back({"atom.global.cas.$ %w0,[%w1],%w2,%w3", {"b64"}});
  v.push_back({"atom.global.cas.$ %q0,[%w1],%q2,%q3", {"b128"}});
  v.push_back({"atom.global.inc.$ %r0,[%w1],%r2", {"u32"}});
  v.push_back({"red.global.v4.add.$ [%w1],{%f0,%f1,%f2,%f3}", {"f32"}});
  v.push_back({"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_"
               "tx::bytes.add.$ [%r0],%r1,[%r2]",
               {"u32"}});
  v.push_back({"st.async.shared::cluster.mbarrier::complete_tx::bytes.$ "
               "[%r0],%r1,[%r2]",
               {"b32"}});
  for (const char *f :
       {"bar.sync 0",
        "bar.sync 1,64",
        "bar.arrive 1,64",
        "bar.red.popc.u32 %r0,0,%p1",
        "bar.red.and.pred %p0,0,%p1",
        "bar.warp.sync -1",
        "barrier.sync 0",
        "barrier.cta.sync.aligned 0,64",
        "barrier.cluster.arrive.release.aligned",
        "barrier.cluster.wait.acquire.aligned",
        "membar.gl",
        "fence.acq_rel.gpu",
        "fence.sc.cta",
        "fence.proxy.async.shared::cta",
        "fence.proxy.tensormap::generic.acquire.gpu [%w0],128",
        "fence.mbarrier_init.release.cluster",
        "griddepcontrol.wait",
        "setmaxnreg.inc.sync.aligned.u32 232",
        "nanosleep.u32 100",
        "mbarrier.init.shared.b64 [bar],1",
        "mbarrier.inval.shared.b64 [bar]",
        "mbarrier.arrive.shared.b64 %w0,[bar]",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _,[bar],16",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _,[%r0]",
        "mbarrier.arrive_drop.shared.b64 %w0,[bar]",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar],16",
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar],16",
        "mbarrier.test_wait.shared.b64 %p0,[bar],%w0",
        "mbarrier.test_wait.parity.shared.b64 %p0,[bar],0",
        "mbarrier.try_wait.parity.shared::cta.b64 %p0,[bar],0,1000",
        "mbarrier.pending_count.b64 %r0,%w0"})
    v.push_back({f, none});
}

/// Warp operations, matrices, asynchronous copies, control.
static void cooperative(std::vector<CoverageForm> &v) {
  for (const char *f :
       {"shfl.sync.bfly.b32 %r0|%p0,%r1,1,31,-1",
        "shfl.sync.up.b32 %r0,%r1,1,0,-1",
        "shfl.sync.down.b32 %r0,%r1,1,31,-1",
        "shfl.sync.idx.b32 %r0,%r1,1,31,-1",
        "vote.sync.ballot.b32 %r0,%p1,-1",
        "vote.sync.any.pred %p0,%p1,-1",
        "vote.sync.all.pred %p0,%p1,-1",
        "vote.sync.uni.pred %p0,%p1,-1",
        "match.any.sync.b32 %r0,%r1,-1",
        "match.all.sync.b64 %r0|%p0,%w1,-1",
        "elect.sync %r0|%p0,-1",
        "activemask.b32 %r0",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r*4},[%r9]",
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {r*2},[%r9]",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r*2},[%r9]",
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r9],{r*4}",
        "movmatrix.sync.aligned.m8n8.trans.b16 %r0,%r1",
        "cp.async.ca.shared.global [%r0],[%w1],4",
        "cp.async.cg.shared.global.L2::128B [%r0],[%w1],16,%r2",
        "cp.async.commit_group",
        "cp.async.wait_group 1",
        "cp.async.wait_all",
        "cp.async.mbarrier.arrive.noinc.shared.b64 [bar]",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%r0],[%w1],%r2,[%r3]",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes."
        "multicast::cluster [%r0],[%w1],%r2,[%r3],%h0",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::"
        "bytes [%r0],[%r1],%r2,[%r3]",
        "cp.async.bulk.global.shared::cta.bulk_group [%w0],[%r1],%r2",
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask "
        "[%w0],[%r1],%r2,%h0",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 "
        "[%w0],[%r1],%r2",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::"
        "complete_tx::bytes [%r0],[%w1,{%r2,%r3}],[%r4]",
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group "
        "[%w1,{%r2,%r3,%r4,%r5,%r6}],[%r0]",
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::"
        "complete_tx::bytes [%r0],[%w1,{%r2,%r3,%r4}],[%r5],{%h0}",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
        "[%w1,{%r2,%r3}],[%r0]",
        "cp.async.bulk.prefetch.L2.global [%w0],%r1",
        "cp.async.bulk.commit_group",
        "cp.async.bulk.wait_group.read 0",
        "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r0],%w1",
        "tensormap.replace.tile.box_dim.global.b1024.b32 [%w0],1,%r1",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release."
        "gpu.sync.aligned [%w0],[%r1],128",
        "wgmma.fence.sync.aligned",
        "wgmma.commit_group.sync.aligned",
        "wgmma.wait_group.sync.aligned 0",
        "bra L",
        "ret",
        "exit",
        "trap",
        "brkpt",
        "tex.2d.v4.f32.s32 {%f0,%f1,%f2,%f3},[%w0,{%r0,%r1}]",
        "suld.b.1d.b32.clamp %r0,[%w0,{%r1}]",
        "alloca.u64 %w0,%w1",
        "stacksave.u64 %w0"})
    v.push_back({f, none});
  for (const char *op : {"add", "min", "max"})
    v.push_back({std::string("redux.sync.") + op + ".$ %r0,%r1,-1", i32});
  for (const char *op : {"and", "or", "xor"})
    v.push_back({std::string("redux.sync.") + op + ".$ %r0,%r1,-1", {"b32"}});
  const char *mma = "mma.sync.aligned.$ {r*4},{r*4},{r*2},{r*4}";
  v.push_back(
      {mma,
       {"m16n8k16.row.col.f32.f16.f16.f32",
        "m16n8k16.row.col.f32.bf16.bf16.f32",
        "m16n8k8.row.col.f32.tf32.tf32.f32",
        "m16n8k32.row.col.f32.e4m3.e4m3.f32",
        "m16n8k32.row.col.f32.e5m2.e4m3.f32", "m16n8k32.row.col.s32.s8.u8.s32",
        "m16n8k32.row.col.satfinite.s32.u8.u8.s32",
        "m16n8k64.row.col.s32.s4.u4.s32",
        "m16n8k256.row.col.s32.b1.b1.s32.xor.popc",
        "m16n8k256.row.col.s32.b1.b1.s32.and.popc"}});
  v.push_back({"mma.sync.aligned.m16n8k16.row.col.$ {r*2},{r*4},{r*2},{r*2}",
               {"f16.f16.f16.f16"}});
  v.push_back({"mma.sync.aligned.m8n8k4.row.col.$ {d*2},%d1,%d2,{d*2}",
               {"f64.f64.f64.f64"}});
  v.push_back({"mma.sync.aligned.m8n8k4.row.col.$ {f*8},{r*2},{r*2},{f*8}",
               {"f32.f16.f16.f32"}});
  v.push_back(
      {"mma.sp::ordered_metadata.sync.aligned.$ {r*4},{r*4},{r*4},{r*4},%r9,0",
       {"m16n8k32.row.col.f32.f16.f16.f32",
        "m16n8k32.row.col.f32.bf16.bf16.f32",
        "m16n8k16.row.col.f32.tf32.tf32.f32",
        "m16n8k64.row.col.f32.e4m3.e4m3.f32", "m16n8k64.row.col.s32.s8.s8.s32",
        "m16n8k128.row.col.s32.s4.s4.s32"}});
  v.push_back({"wmma.load.a.sync.aligned.row.$ {r*8},[%w0],%r1",
               {"m16n16k16.global.f16"}});
  v.push_back({"wmma.load.b.sync.aligned.col.$ {r*4},[%w0],%r1",
               {"m16n16k8.global.tf32", "m16n16k16.global.bf16"}});
  v.push_back({"wmma.mma.sync.aligned.row.col.$ {r*8},{r*2},{r*2},{r*8}",
               {"m16n16k16.s32.s8.s8.s32"}});
  v.push_back({"wmma.store.d.sync.aligned.row.$ [%w0],{r*8},%r1",
               {"m16n16k16.global.f32"}});
  v.push_back(
      {"wgmma.mma_async.sync.aligned.m64n8k16.$ {f*4},%w0,%w1,%p0,1,1,0,0",
       {"f32.f16.f16", "f32.bf16.bf16"}});
  v.push_back(
      {"wgmma.mma_async.sync.aligned.m64n256k16.$ {r*128},{r*4},%w1,%p0,1,1,0",
       {"f32.f16.f16"}});
  v.push_back({"wgmma.mma_async.sync.aligned.$ {r*4},%w0,%w1,%p0,1,1",
               {"m64n8k8.f32.tf32.tf32", "m64n8k32.f32.e4m3.e4m3"}});
  v.push_back({"wgmma.mma_async.sync.aligned.m64n8k32.$ {r*4},%w0,%w1,%p0",
               {"s32.s8.s8", "s32.u8.u8"}});
  v.push_back({"wgmma.mma_async.sync.aligned.m64n8k256.$ {r*4},%w0,%w1,%p0",
               {"s32.b1.b1.and.popc"}});
  v.push_back({"wgmma.mma_async.sp.sync.aligned.m64n8k32.$ "
               "{f*4},%w0,%w1,%r0,0,%p0,1,1,0,0",
               {"f32.f16.f16"}});
}

const std::vector<CoverageForm> &coverageForms() {
  static const std::vector<CoverageForm> all = [] {
    std::vector<CoverageForm> v;
    arithmetic(v);
    movement(v);
    memory(v);
    cooperative(v);
    return v;
  }();
  return all;
}

} // namespace kvcache::sim
