hyscale_test(test_sparse_ops SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/test_flash_topk.cpp ${CMAKE_CURRENT_LIST_DIR}/../quantize_rows/test_quantize_rows.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../sparse_attention/test_sparse_attention.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../index_loss/test_index_loss.cpp ${CMAKE_CURRENT_LIST_DIR}/../dense_attention/test_dense_attention.cpp
  DEPENDS hyscale_kernels)
if(HYSCALE_HAS_CUDA)
  hyscale_test(test_topk_cuda SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_flash_topk_cuda.cpp ${CMAKE_CURRENT_LIST_DIR}/../quantize_rows/test_quantize_rows_cuda.cpp DEPENDS hyscale_kernels)
endif()
