# Helpers used by every folder's CMakeLists.txt.

# Adds a folder that may be absent from a source package (tests, benchmarks).
function(kvcache_add_subdirectory dir)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/CMakeLists.txt)
    add_subdirectory(${dir})
  endif()
endfunction()

# Warnings for our own code.
function(kvcache_target_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unused-parameter)
  if(KVCACHE_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# kvcache_add_library(NAME SOURCES... [LINK libs...] [DEPENDS targets...])
# A static library of the compiler, without LLVM's own option handling.
function(kvcache_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  kvcache_target_options(${name})
  if(ARG_LINK)
    target_link_libraries(${name} PUBLIC ${ARG_LINK})
  endif()
  if(ARG_DEPENDS)
    add_dependencies(${name} ${ARG_DEPENDS})
  endif()
endfunction()

# kvcache_add_unittest(NAME SOURCES... [LINK libs...]): a GoogleTest program that
# ctest runs.
function(kvcache_add_unittest name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  if(NOT KVCACHE_BUILD_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  kvcache_target_options(${name})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest_main GTest::gmock)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                           ${CMAKE_BINARY_DIR}/unittests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300)
endfunction()

# kvcache_add_fuzzer(NAME SOURCES...): a libFuzzer program build/fuzzers/fuzz-NAME
# with address and undefined-behaviour checks. The sources under test are listed
# too, so that they are instrumented; the corpus is test/Fuzz/corpus/NAME.
function(kvcache_add_fuzzer name)
  if(NOT KVCACHE_BUILD_FUZZERS)
    return()
  endif()
  add_executable(fuzz-${name} ${ARGN})
  set(flags -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -O1 -g1)
  target_compile_options(fuzz-${name} PRIVATE ${flags})
  target_link_options(fuzz-${name} PRIVATE ${flags})
  set_target_properties(fuzz-${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY
                                                ${CMAKE_BINARY_DIR}/fuzzers)
endfunction()
