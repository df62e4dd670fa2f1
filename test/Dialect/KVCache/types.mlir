// RUN: kv-opt %s | FileCheck %s --enable-var-scope
// RUN: kv-opt %s | kv-opt | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --mlir-print-op-generic | kv-opt | FileCheck %s --enable-var-scope
// RUN: kv-opt %s --emit-bytecode | kv-opt | FileCheck %s --enable-var-scope

// Attributes and the cache type print and parse back the same.

// CHECK-LABEL: @formats
// CHECK-SAME: a = #kvcache.format<key = i4:channel:g32, value = i4:g32, recent = 128>
// CHECK-SAME: b = #kvcache.format<kivi4, page = 128, sinks = 4>
// CHECK-SAME: c = #kvcache.format<"sparse24-fp8">
// CHECK-SAME: d = #kvcache.format<key = f16, value = i8, page = 16>
// CHECK-SAME: e = #kvcache.format<key = e4m3:2of4:hadamard:center
func.func private @formats() attributes {
  a = #kvcache.format<key = i4:channel:g32:asym, value = i4:token:g32:asym, page = 64, recent = 128>,
  b = #kvcache.format<kivi4, page = 128, sinks = 4>,
  c = #kvcache.format<"sparse24-fp8">,
  d = #kvcache.format<"key=f16,value=i8:token:asym,page=16">,
  e = #kvcache.format<key = e4m3:2of4:hadamard:center>
}
