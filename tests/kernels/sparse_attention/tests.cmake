hyscale_test(test_attention_cuda SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_sparse_attention_cuda.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../index_loss/test_index_loss_cuda.cpp DEPENDS hyscale_sparse_attention hyscale_index_loss)
