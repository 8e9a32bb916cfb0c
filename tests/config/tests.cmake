hyscale_test(test_config SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_config.cpp DEPENDS hyscale_config)
