// RUN: kv-opt %s --split-input-file --verify-diagnostics

// Each attribute and type constraint, and each parser message.

// expected-error @below {{nonsense}}
func.func private @format_preset() attributes {a = #kvcache.format<nonsense>}

// -----

// expected-error @below {{page}}
func.func private @format_page() attributes {a = #kvcache.format<kivi4, page = 3>}

// -----

// expected-error @below {{i3}}
func.func private @format_element() attributes {a = #kvcache.format<key = i3>}

// -----

// expected-error @below {{expected a word of the format grammar}}
func.func private @format_word() attributes {a = #kvcache.format<key = >}

// -----

// expected-error @below {{'' is not a preset}}
func.func private @format_empty() attributes {a = #kvcache.format<>}

// -----

// expected-error @below {{in a format}}
func.func private @format_end() attributes {a = #kvcache.format<kivi4 page = 16>}

// -----

// expected-error @below {{nope}}
func.func private @encoding() attributes {a = #kvcache.encoding<i4:nope>}

// -----

// expected-error @below {{expected '>'}}
func.func private @encoding_end() attributes {a = #kvcache.encoding<i4, i8>}

// -----

// expected-error @below {{expected 'left' or 'right', got 'up'}}
func.func private @window_side() attributes {a = #kvcache.window<up = 3>}

// -----

// expected-error @below {{'left' is given twice}}
func.func private @window_twice() attributes {a = #kvcache.window<left = 3, left = 4>}

// -----

// expected-error @below {{expected a window of 0 or more neighbours, got -1}}
func.func private @window_negative() attributes {a = #kvcache.window<left = -1>}

// -----

// expected-error @below {{expected a window to bound 'left' or 'right'}}
func.func private @window_empty() attributes {a = #kvcache.window<>}

// -----

// expected-error @below {{expected image family x86-64, sm_8x or sm_90, got 'sm_75'}}
func.func private @image_family() attributes {a = #kvcache.image<"sm_75", hash = "00">}

// -----

// expected-error @below {{expected an image hash of 1 to 64 lower-case hexadecimal digits, got 'XY'}}
func.func private @image_hash() attributes {a = #kvcache.image<"sm_8x", hash = "XY">}

// -----

// expected-error @below {{expected an array number of 0 or more, got -1}}
func.func private @array_number() attributes {a = #kvcache.external_array<-1, affine_map<(p, t, h, c) -> (p)>>}

// -----

// expected-error @below {{expected a map of (page, token, head, channel), got 2 dims and 1 symbols}}
func.func private @array_dims() attributes {a = #kvcache.external_array<0, affine_map<(p, t)[s] -> (p)>>}

// -----

// expected-error @below {{expected a map with one result per dimension of its array, got none}}
func.func private @array_results() attributes {a = #kvcache.external_array<0, affine_map<(p, t, h, c) -> ()>>}

// -----

// expected-error @below {{expected packed elements of at most 8 bits, got f16}}
func.func private @tensor_wide() attributes {a = #kvcache.external_tensor<f16, packed(token, low_first), codes(0, affine_map<(p, t, h, c) -> (p)>)>}

// -----

// expected-error @below {{expected packed elements to be integers, got e4m3}}
func.func private @tensor_fp8() attributes {a = #kvcache.external_tensor<e4m3, packed(token, low_first), codes(0, affine_map<(p, t, h, c) -> (p)>)>}

// -----

// expected-error @below {{expected no scales for f16 elements}}
func.func private @tensor_scales() attributes {a = #kvcache.external_tensor<f16, codes(0, affine_map<(p, t, h, c) -> (p)>) scales(0, affine_map<(p, t, h, c) -> (p)>)>}

// -----

// expected-error @below {{expected packed(token|channel, low_first|high_first), got packed(head, low_first)}}
func.func private @packing_words() attributes {a = #kvcache.external_tensor<i4, packed(head, low_first), codes(0, affine_map<(p, t, h, c) -> (p)>)>}

// -----

// expected-error @below {{i5}}
func.func private @tensor_element() attributes {a = #kvcache.external_tensor<i5, codes(0, affine_map<(p, t, h, c) -> (p)>)>}

// -----

// expected-error @below {{expected table rule raw, clamp, wrap or none, got 'round'}}
func.func private @external_rule() attributes {a = #kvcache.external<key = f16, codes(0, affine_map<(p, t, h, c) -> (p)>), value = f16, codes(0, affine_map<(p, t, h, c) -> (p)>), table = round>}

// -----

// expected-error @below {{expected 'value'}}
func.func private @external_order() attributes {a = #kvcache.external<key = f16, codes(0, affine_map<(p, t, h, c) -> (p)>), table = raw>}

// -----

// expected-error @below {{expected 'kv' to be positive, got 0}}
func.func private @cache_t1(!kvcache.cache<kv = 0, d = 64, open = f16, #kvcache.format<f16>>)

// -----

// expected-error @below {{expected 'd' to be positive, got -64}}
func.func private @cache_t1_d(!kvcache.cache<kv = 1, d = -64, open = f16, #kvcache.format<f16>>)

// -----

// expected-error @below {{expected 'open' to be f16, bf16 or f32, got 'f64'}}
func.func private @cache_t2(!kvcache.cache<kv = 1, d = 64, open = f64, #kvcache.format<f16>>)

// -----

// expected-error @below {{60}}
func.func private @cache_t3_dim(!kvcache.cache<kv = 1, d = 60, open = f16, #kvcache.format<f16>>)

// -----

// expected-error @below {{48}}
func.func private @cache_t3_group(!kvcache.cache<kv = 1, d = 64, open = f16, #kvcache.format<key = i4:token:g48>>)

// -----

// expected-error @below {{expected latent values to be at most d = 64 channels, got dv = 128}}
func.func private @cache_t4(!kvcache.cache<kv = 1, d = 64, dv = 128, latent, open = f16, #kvcache.format<f16>>)

// -----

// expected-error @below {{expected a latent cache to have one encoding, got key = f16 and value = bf16}}
func.func private @cache_t4_encoding(!kvcache.cache<kv = 1, d = 64, latent, open = f16, #kvcache.format<key = f16, value = bf16>>)

// -----

// expected-error @below {{expected the layout to be unassigned, #kvcache.image or #kvcache.external, got 3}}
func.func private @cache_t5(!kvcache.cache<kv = 1, d = 64, open = f16, #kvcache.format<f16>, 3 : i32>)

// -----

// expected-error @below {{expected the external layout's key element to be the format's f16, got bf16}}
func.func private @cache_t6_element(!kvcache.cache<kv = 1, d = 64, open = f16, #kvcache.format<f16>, #kvcache.external<key = bf16, codes(0, affine_map<(p, t, h, c) -> (p)>), value = f16, codes(0, affine_map<(p, t, h, c) -> (p)>), table = raw>>)

// -----

// expected-error @below {{expected the external layout to have key scales, as the format has them}}
func.func private @cache_t6_scales(!kvcache.cache<kv = 1, d = 64, open = f16, #kvcache.format<int8>, #kvcache.external<key = i8, codes(0, affine_map<(p, t, h, c) -> (p)>), value = f16, codes(0, affine_map<(p, t, h, c) -> (p)>), table = raw>>)

// -----

// expected-error @below {{expected the external layout to have key zeros, as the format is asymmetric}}
func.func private @cache_t6_zeros(!kvcache.cache<kv = 1, d = 64, open = f16, #kvcache.format<int8>, #kvcache.external<key = i8, codes(0, affine_map<(p, t, h, c) -> (p)>) scales(1, affine_map<(p, t, h, c) -> (p)>), value = f16, codes(0, affine_map<(p, t, h, c) -> (p)>), table = raw>>)

// -----

// expected-error @below {{expected an external cache without sinks and recent window, got sinks = 4, recent = 0}}
func.func private @cache_t7(!kvcache.cache<kv = 1, d = 64, open = f16, #kvcache.format<f16, sinks = 4>, #kvcache.external<key = f16, codes(0, affine_map<(p, t, h, c) -> (p)>), value = f16, codes(0, affine_map<(p, t, h, c) -> (p)>), table = raw>>)

// -----

// expected-error @below {{expected 'open'}}
func.func private @cache_missing(!kvcache.cache<kv = 1, d = 64, f16, #kvcache.format<f16>>)

// -----

// expected-error @below {{expected 'd'}}
func.func private @cache_order(!kvcache.cache<kv = 1, kv = 64, f16, #kvcache.format<f16>>)

// -----

// expected-error @below {{invalid kind of attribute specified}}
func.func private @cache_format(!kvcache.cache<kv = 1, d = 64, open = f16, 3 : i32>)
