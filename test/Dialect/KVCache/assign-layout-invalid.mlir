// RUN: kv-opt %s --split-input-file --kvcache-assign-layout=target=sm_80 --verify-diagnostics

// expected-error @below {{no page image on sm_80: latent caches have no page image}}
func.func private @latent(!kvcache.cache<kv = 1, d = 64, latent, open = f16, #kvcache.format<f16>>)

// -----

// expected-error @below {{no page image on sm_80: }}
func.func private @page(!kvcache.cache<kv = 1, d = 64, open = f16, #kvcache.format<kivi4, page = 1>>)
