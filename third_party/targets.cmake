# How HyScale's own targets are made: common flags, and one function per kind of target.
add_library(hyscale_flags INTERFACE)
target_include_directories(hyscale_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
target_compile_options(hyscale_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers -march=${HYSCALE_CPU_ARCH} -fno-math-errno>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror,-Wno-unused-parameter,-Wno-missing-field-initializers
    --expt-relaxed-constexpr -lineinfo -Werror=all-warnings -Xptxas=--warn-on-spills>)
if(HYSCALE_SANITIZE)
  target_compile_options(hyscale_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(hyscale_flags INTERFACE -fsanitize=address,undefined)
  # Arenas hand out memory full of NaN: what reads before it writes is seen in every test.
  target_compile_definitions(hyscale_flags INTERFACE HYSCALE_POISON=1)
endif()
if(HYSCALE_FUZZ)
  # The warnings that are errors are those of g++.
  target_compile_options(hyscale_flags INTERFACE -Wno-error -fsanitize=fuzzer-no-link)
endif()
if(HYSCALE_HAS_CUDA)
  target_compile_definitions(hyscale_flags INTERFACE HYSCALE_HAS_CUDA=1)
endif()

# hyscale_library(NAME SOURCES ... DEPENDS ...): a room, or an op. CUDA sources are dropped when CUDA is off.
function(hyscale_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT HYSCALE_HAS_CUDA)
    list(FILTER arg_SOURCES EXCLUDE REGEX "\\.cu$")
  endif()
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC hyscale_flags ${arg_DEPENDS})
  if(HYSCALE_HAS_CUDA)
    target_link_libraries(${name} PUBLIC CUDA::cudart)
  endif()
endfunction()

# Tests run side by side, so idle OpenMP threads sleep instead of spinning on cores that others need.
# hyscale_test(NAME SOURCES ... DEPENDS ... [LABELS ...] [TIMEOUT s]): a GoogleTest program with one CTest entry per case.
# Tests run in the repository root. Suites with "Cuda" in their name carry the label gpu and skip without a device.
function(hyscale_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT HYSCALE_HAS_CUDA)
    list(FILTER arg_SOURCES EXCLUDE REGEX "\\.cu$")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} hyscale_test_support GTest::gtest GTest::gtest_main)
  set(common WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} DISCOVERY_MODE PRE_TEST)
  gtest_discover_tests(${name} ${common} TEST_FILTER "-*Cuda*" PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT OMP_WAIT_POLICY=passive LABELS "${arg_LABELS}")
  if(HYSCALE_HAS_CUDA)
    gtest_discover_tests(${name} ${common} TEST_FILTER "*Cuda*" PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT OMP_WAIT_POLICY=passive LABELS "gpu;${arg_LABELS}")
  endif()
endfunction()
