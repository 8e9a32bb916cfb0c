hyscale_test(test_checkpoint SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_safetensors.cpp ${CMAKE_CURRENT_LIST_DIR}/test_checkpoint.cpp DEPENDS hyscale_train)
