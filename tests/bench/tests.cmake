# Google Benchmark programs; they are built with the tests and run by hand (docs/benchmarks.md).
add_executable(bench_step ${CMAKE_CURRENT_LIST_DIR}/step_benchmark.cpp)
target_link_libraries(bench_step PRIVATE hyscale_train benchmark::benchmark)
add_executable(bench_ops ${CMAKE_CURRENT_LIST_DIR}/ops_benchmark.cpp)
target_link_libraries(bench_ops PRIVATE hyscale_kernels hyscale_test_support benchmark::benchmark)
hyscale_test(test_step_bench SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_step_bench.cpp DEPENDS hyscale_train)
target_compile_definitions(test_step_bench PRIVATE HYSCALE_TOOLS="$<TARGET_FILE_DIR:hyscale-train>" HYSCALE_MPIRUN="${MPIEXEC_EXECUTABLE}")
add_dependencies(test_step_bench hyscale-bench)
