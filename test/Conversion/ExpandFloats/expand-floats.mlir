// RUN: kv-opt %s --kvcache-expand-floats | FileCheck %s --enable-var-scope

// CHECK-LABEL: func @widen
// CHECK-NOT: arith.extf {{.*}} f8E4M3FN
// CHECK: arith.mulf
func.func @widen(%x: f8E4M3FN) -> f32 {
  %0 = arith.extf %x : f8E4M3FN to f32
  return %0 : f32
}

// CHECK-LABEL: func @narrow_vector
// CHECK-NOT: arith.truncf
// CHECK: math.roundeven {{.*}} : vector<4xf32>
// CHECK: arith.bitcast {{.*}} : vector<4xi8> to vector<4xf8E5M2>
func.func @narrow_vector(%x: vector<4xf32>) -> vector<4xf8E5M2> {
  %0 = arith.truncf %x : vector<4xf32> to vector<4xf8E5M2>
  return %0 : vector<4xf8E5M2>
}

// f64 is rounded to an odd f32 first, so that it is rounded once.
// CHECK-LABEL: func @double_to_bf16
// CHECK: arith.truncf %{{.*}} : f64 to f32
// CHECK: arith.ori
// CHECK: arith.bitcast {{.*}} : i16 to bf16
func.func @double_to_bf16(%x: f64) -> bf16 {
  %0 = arith.truncf %x : f64 to bf16
  return %0 : bf16
}

// CHECK-LABEL: func @integer
// CHECK: arith.sitofp %{{.*}} : i32 to f64
func.func @integer(%x: i32) -> bf16 {
  %0 = arith.sitofp %x : i32 to bf16
  return %0 : bf16
}

// CHECK-LABEL: func @bf16_to_f16
// CHECK: arith.bitcast %{{.*}} : bf16 to i16
// CHECK: arith.shli
// CHECK: arith.truncf %{{.*}} : f32 to f16
func.func @bf16_to_f16(%x: bf16) -> f16 {
  %0 = arith.extf %x : bf16 to f32
  %1 = arith.truncf %0 : f32 to f16
  return %1 : f16
}

// What LLVM does itself is left alone.
// CHECK-LABEL: func @untouched
// CHECK-NEXT: arith.extf %{{.*}} : f16 to f32
// CHECK-NEXT: return
func.func @untouched(%x: f16) -> f32 {
  %0 = arith.extf %x : f16 to f32
  return %0 : f32
}
