hyscale_test(test_attention_cuda SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_sparse_attention_cuda.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../index_loss/test_index_loss_cuda.cpp DEPENDS hyscale_sparse_attention hyscale_index_loss)
if(HYSCALE_HAS_CUDA)
  add_executable(attention-bench ${CMAKE_SOURCE_DIR}/src/bench/attention_bench.cu)
  target_link_libraries(attention-bench PRIVATE hyscale_sparse_attention hyscale_index_loss)
endif()
