find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train REQUIRED)
hyscale_test(test_data SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_data.cpp ${CMAKE_CURRENT_LIST_DIR}/test_blend.cpp
  ${CMAKE_CURRENT_LIST_DIR}/test_bpe_tokenizer.cpp DEPENDS hyscale_data ${SENTENCEPIECE_TRAIN_LIBRARY})
