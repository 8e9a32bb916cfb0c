hyscale_test(test_faults_cuda SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_few_keys_cuda.cpp ${CMAKE_CURRENT_LIST_DIR}/test_large_cuda.cpp DEPENDS hyscale_kernels)
