hyscale_test(test_block_attention_cuda SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_block_attention_cuda.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../block_pool/test_block_pool_cuda.cpp DEPENDS hyscale_block_attention hyscale_block_pool)
