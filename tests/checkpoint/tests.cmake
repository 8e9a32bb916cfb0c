hyscale_test(test_checkpoint SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_safetensors.cpp ${CMAKE_CURRENT_LIST_DIR}/test_checkpoint.cpp ${CMAKE_CURRENT_LIST_DIR}/test_dequantize.cpp DEPENDS hyscale_train)
