hyscale_test(test_reports SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_reports.cpp ${CMAKE_CURRENT_LIST_DIR}/test_reported_runs.cpp DEPENDS hyscale_train)
target_compile_definitions(test_reports PRIVATE HYSCALE_TOOLS="$<TARGET_FILE_DIR:hyscale-train>" HYSCALE_MPIRUN="${MPIEXEC_EXECUTABLE}")
add_dependencies(test_reports hyscale-train)
