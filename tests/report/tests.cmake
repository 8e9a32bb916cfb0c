hyscale_test(test_report SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_report.cpp DEPENDS hyscale_report)
target_compile_definitions(test_report PRIVATE HYSCALE_TOOLS="$<TARGET_FILE_DIR:hyscale-report>")
add_dependencies(test_report hyscale-report)
