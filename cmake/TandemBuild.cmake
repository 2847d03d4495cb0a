# Flags, the module and test functions. Everything else in this build is a list of files.

option(TANDEM_TESTS "build the tests" ON)
option(TANDEM_WERROR "warnings are errors" OFF)
option(TANDEM_FUZZ "build the fuzz targets (needs clang)" OFF)
set(TANDEM_SANITIZE "" CACHE STRING "address,undefined | thread | empty")
set(TANDEM_ORIGINAL_MODEL "" CACHE PATH "folder of the bf16 demo model; builds the tests labelled 'original'")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

# -O2: kernels ask for -O3 themselves, and g++ 12's -O3 doubles the build's time and warns of what is not there.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# No contraction anywhere: a fused multiply-add appears where the source writes std::fma or an intrinsic
# (exactness: the same bits whatever the compiler's mood).
set(TANDEM_HOST_LANGUAGES "$<COMPILE_LANGUAGE:C,CXX>")
add_compile_options("$<${TANDEM_HOST_LANGUAGES}:-Wall;-Wextra;-ffp-contract=off>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms: std::string operator+ (GCC bug 105651), std::optional (bug 80635).
  add_compile_options("$<${TANDEM_HOST_LANGUAGES}:-Wno-restrict;-Wno-maybe-uninitialized>")
endif()
if(TANDEM_WERROR)
  add_compile_options("$<${TANDEM_HOST_LANGUAGES}:-Werror>")
endif()
add_compile_definitions($<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
if(TANDEM_SANITIZE)
  add_compile_options(
    "$<${TANDEM_HOST_LANGUAGES}:-fsanitize=${TANDEM_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
endif()
if(TANDEM_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # the fuzzer sees which branches of our modules an input takes
endif()

# The cuda backend. Kernels are written for Hopper first; a list of architectures makes them for other cards too.
set(TANDEM_CUDA AUTO CACHE STRING "build the cuda backend: AUTO (where a toolkit is found), ON or OFF")
set(TANDEM_CUDA_ARCHITECTURES 90a-real CACHE STRING "compute capabilities to compile kernels for")
if(NOT TANDEM_CUDA STREQUAL "OFF" AND NOT TANDEM_SANITIZE)
  find_program(TANDEM_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(TANDEM_NVCC)
    set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${TANDEM_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    if(CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # cmake 3.25 does not know that nvcc 13 has it
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    # No contraction here either. relaxed-constexpr: std::min and its kind in host-device helpers.
    set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra")
    set(TANDEM_HAS_CUDA ON)
  elseif(TANDEM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TANDEM_CUDA is ON, but there is no nvcc on the PATH or in /usr/local/cuda/bin")
  endif()
endif()

find_program(LLD ld.lld)
if(LLD)
  add_link_options(-fuse-ld=lld)
endif()

# td_module(speculate SOURCES a.cc b.cc DEPS base sample [LIBS fmt::fmt]): static library td_speculate, which sees
# its own headers and those of DEPS (tools/layers checks that includes only point upward).
function(td_module name)
  cmake_parse_arguments(M "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  string(REPLACE "/" "_" target td_${name})
  add_library(${target} STATIC ${M_SOURCES})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  foreach(dep ${M_DEPS})
    string(REPLACE "/" "_" dep_target td_${dep})
    target_link_libraries(${target} PUBLIC ${dep_target})
  endforeach()
  target_link_libraries(${target} PRIVATE fmt::fmt ${M_LIBS})
endfunction()

# td_test(base_thread_team SOURCES x_test.cc DEPS base [LIBS ...] [LABELS slow]): one gtest binary, one ctest entry.
# Tests find their data under TANDEM_TEST_DATA and the embedded models under TANDEM_MODELS.
function(td_test name)
  cmake_parse_arguments(T "" "TIMEOUT" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
  add_executable(test_${name} ${T_SOURCES})
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_compile_options(test_${name} PRIVATE -O1)  # tests are many and run briefly: compile time is what counts
  target_compile_definitions(test_${name} PRIVATE TANDEM_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
                                                  TANDEM_MODELS="${CMAKE_SOURCE_DIR}/models")
  foreach(dep ${T_DEPS})
    string(REPLACE "/" "_" dep_target td_${dep})
    target_link_libraries(test_${name} PRIVATE ${dep_target})
  endforeach()
  target_link_libraries(test_${name} PRIVATE fmt::fmt ${T_LIBS} GTest::gtest GTest::gtest_main Threads::Threads)
  add_test(NAME ${name} COMMAND test_${name} --gtest_brief=1)
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT})
  if(T_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${T_LABELS}")
  endif()
endfunction()

# td_fuzz(safetensors SOURCES x_fuzz.cc DEPS format): libFuzzer target fuzz_safetensors, only with TANDEM_FUZZ.
function(td_fuzz name)
  if(NOT TANDEM_FUZZ)
    return()
  endif()
  cmake_parse_arguments(F "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_executable(fuzz_${name} ${F_SOURCES})
  target_include_directories(fuzz_${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  foreach(dep ${F_DEPS})
    string(REPLACE "/" "_" dep_target td_${dep})
    target_link_libraries(fuzz_${name} PRIVATE ${dep_target})
  endforeach()
  target_link_libraries(fuzz_${name} PRIVATE fmt::fmt ${F_LIBS})
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
endfunction()
