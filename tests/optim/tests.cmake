hyscale_test(test_optim SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_schedule.cpp DEPENDS hyscale_optim)
