// RUN: kv-opt %s --split-input-file --kvcache-verify-linear --allow-unregistered-dialect --verify-diagnostics

// Uses after a replacement, along every kind of path.

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

func.func @straight(%c: !cache) -> !cache {
  // expected-note @below {{replaced here}}
  %new = kvcache.seal %c : !cache
  // expected-error @below {{'kvcache.seal' op uses a cache that was replaced: use the result of 'kvcache.seal' instead}}
  %bad = kvcache.seal %c : !cache
  return %new : !cache
}

func.func @good(%c: !cache, %k: tensor<?x8x64xf16>, %r: tensor<?xi32>) -> (!cache, tensor<?x8x?x64xf32>) {
  %before:3 = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  %1 = kvcache.append %c, %k, %k rows(%r) : !cache, tensor<?x8x64xf16>, tensor<?x8x64xf16> rows(tensor<?xi32>)
  %2 = kvcache.seal %1 : !cache
  return %2, %before#0 : !cache, tensor<?x8x?x64xf32>
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

// One branch replaces: the join may not use the old value, the other branch may.
func.func @branches(%c: !cache, %b: i1) -> !cache {
  cf.cond_br %b, ^replace, ^keep
^replace:
  // expected-note @below {{replaced here}}
  %new = kvcache.seal %c : !cache
  cf.br ^join(%new : !cache)
^keep:
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  cf.br ^join(%c : !cache)
^join(%both: !cache):
  // expected-error @below {{'kvcache.read' op uses a cache that was replaced: use the result of 'kvcache.seal' instead}}
  %k2, %v2, %n2 = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  return %both : !cache
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

// The block argument is the cache that a branch passed on.
func.func @through_argument(%c: !cache, %b: i1) -> !cache {
  cf.br ^next(%c : !cache)
^next(%arg: !cache):
  // expected-note @below {{replaced here}}
  %new = kvcache.seal %arg : !cache
  // expected-error @below {{'kvcache.read' op uses a cache that was replaced}}
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  return %new : !cache
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

func.func @loop_carried(%c: !cache, %n: index) -> !cache {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%arg = %c) -> !cache {
    %new = kvcache.seal %arg : !cache
    scf.yield %new : !cache
  }
  return %r : !cache
}

// The second iteration would use what the first replaced.
func.func @loop_captures(%c: !cache, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %n step %c1 {
    // expected-error @below {{'kvcache.seal' op uses a cache that was replaced: use the result of 'kvcache.seal' instead}}
    // expected-note @below {{replaced here}}
    %new = kvcache.seal %c : !cache
  }
  return
}

func.func @loop_then_old(%c: !cache, %n: index) -> (!cache, !cache) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%arg = %c) -> !cache {
    // expected-note @below {{replaced here}}
    %new = kvcache.seal %arg : !cache
    scf.yield %new : !cache
  }
  // expected-error @below {{'func.return' op uses a cache that was replaced}}
  return %r, %c : !cache, !cache
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

func.func @if(%c: !cache, %b: i1) -> !cache {
  %r = scf.if %b -> !cache {
    // expected-note @below {{replaced here}}
    %new = kvcache.seal %c : !cache
    scf.yield %new : !cache
  } else {
    scf.yield %c : !cache
  }
  // The result of the `if` may be used, the old value not.
  %s = kvcache.seal %r : !cache
  // expected-error @below {{'kvcache.seal' op uses a cache that was replaced}}
  %t = kvcache.seal %c : !cache
  return %s : !cache
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

func.func @while(%c: !cache, %b: i1) -> !cache {
  %r = scf.while (%arg = %c) : (!cache) -> !cache {
    scf.condition(%b) %arg : !cache
  } do {
  ^bb0(%arg: !cache):
    %new = kvcache.seal %arg : !cache
    // The state of the first iteration is passed on, not the new one.
    scf.yield %new : !cache
  }
  return %r : !cache
}

func.func @select(%c: !cache, %d: !cache, %b: i1) -> !cache {
  %one = arith.select %b, %c, %d : !cache
  // expected-note @below {{replaced here}}
  %new = kvcache.seal %one : !cache
  // expected-error @below {{'kvcache.seal' op uses a cache that was replaced}}
  %bad = kvcache.seal %d : !cache
  return %new : !cache
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

func.func private @unknown(!cache) -> !cache
func.func private @reads(%c: !cache) {
  %k, %v, %n = kvcache.read %c : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  return
}
func.func private @seals(%c: !cache) -> !cache {
  %new = kvcache.seal %c : !cache
  return %new : !cache
}
func.func private @recursive(%c: !cache) -> !cache {
  %new = func.call @recursive(%c) : (!cache) -> !cache
  return %new : !cache
}

func.func @calls(%a: !cache, %b: !cache, %c: !cache) {
  call @reads(%a) : (!cache) -> ()
  call @reads(%a) : (!cache) -> ()
  // expected-note @below {{replaced here}}
  %1 = call @seals(%b) : (!cache) -> !cache
  // expected-error @below {{'func.call' op uses a cache that was replaced: use the result of 'func.call' instead}}
  call @reads(%b) : (!cache) -> ()
  // expected-note @below {{replaced here}}
  %2 = call @unknown(%c) : (!cache) -> !cache
  // expected-error @below {{'func.call' op uses a cache that was replaced}}
  call @reads(%c) : (!cache) -> ()
  // expected-note @below {{replaced here}}
  %3 = call @recursive(%a) : (!cache) -> !cache
  // expected-error @below {{'func.call' op uses a cache that was replaced}}
  call @reads(%a) : (!cache) -> ()
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

// An op whose regions run in an unknown way may run them again.
func.func @unknown_regions(%c: !cache) {
  "test.region"() ({
    // expected-error @below {{'kvcache.seal' op uses a cache that was replaced}}
    // expected-note @below {{replaced here}}
    %new = kvcache.seal %c : !cache
    "test.end"() : () -> ()
  }) : () -> ()
  return
}

// -----

!cache = !kvcache.cache<kv = 8, d = 64, open = f16, #kvcache.format<f16>, unassigned>

// One cache under two names.
func.func @passed_twice(%c: !cache) -> !cache {
  cf.br ^next(%c, %c : !cache, !cache)
^next(%a: !cache, %b: !cache):
  // expected-note @below {{replaced here}}
  %new = kvcache.seal %a : !cache
  // expected-error @below {{'kvcache.seal' op uses a cache that was replaced}}
  %bad = kvcache.seal %b : !cache
  return %new : !cache
}

func.func private @both(%a: !cache, %b: !cache) -> !cache {
  %new = kvcache.seal %a : !cache
  %k, %v, %n = kvcache.read %b : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  return %new : !cache
}

func.func @call_twice(%c: !cache) -> !cache {
  // expected-error @below {{'func.call' op passes a cache twice to a call that replaces it}}
  // expected-note @below {{replaced here}}
  %new = call @both(%c, %c) : (!cache, !cache) -> !cache
  return %new : !cache
}

func.func @swap(%c: !cache, %d: !cache, %b: i1) -> !cache {
  cf.br ^loop(%c, %d : !cache, !cache)
^loop(%x: !cache, %y: !cache):
  %k, %v, %n = kvcache.read %x : !cache -> tensor<?x8x?x64xf32>, tensor<?x8x?x64xf32>, tensor<?xi32>
  cf.cond_br %b, ^loop(%y, %x : !cache, !cache), ^exit
^exit:
  // expected-note @below {{replaced here}}
  %new = kvcache.seal %x : !cache
  // After a swap %x may be either.
  // expected-error @below {{'kvcache.seal' op uses a cache that was replaced}}
  %bad = kvcache.seal %d : !cache
  return %new : !cache
}
