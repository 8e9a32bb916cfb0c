hyscale_test(test_optim SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_schedule.cpp ${CMAKE_CURRENT_LIST_DIR}/test_muon.cpp ${CMAKE_CURRENT_LIST_DIR}/test_muon_cuda.cpp DEPENDS hyscale_optim)
add_executable(muon_check ${CMAKE_CURRENT_LIST_DIR}/muon_check.cpp)
target_link_libraries(muon_check PRIVATE hyscale_train)
hyscale_mpi_test(muon_check 1 2 4)
