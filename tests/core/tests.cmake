hyscale_test(test_core SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_tensor.cpp ${CMAKE_CURRENT_LIST_DIR}/test_memory.cpp ${CMAKE_CURRENT_LIST_DIR}/test_json.cpp DEPENDS hyscale_core)
