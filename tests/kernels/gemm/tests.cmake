hyscale_test(test_dense_ops SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/test_gemm.cpp ${CMAKE_CURRENT_LIST_DIR}/../rms_norm/test_rms_norm.cpp ${CMAKE_CURRENT_LIST_DIR}/../layer_norm/test_layer_norm.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../rope/test_rope.cpp ${CMAKE_CURRENT_LIST_DIR}/../swiglu/test_swiglu.cpp ${CMAKE_CURRENT_LIST_DIR}/../embedding/test_embedding.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../lm_head_loss/test_lm_head_loss.cpp ${CMAKE_CURRENT_LIST_DIR}/../router/test_router.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../moe_permute/test_moe_permute.cpp ${CMAKE_CURRENT_LIST_DIR}/../elementwise/test_elementwise.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../hyper_connection/test_hyper_connection.cpp ${CMAKE_CURRENT_LIST_DIR}/../compressor/test_compressor.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../attended_rows/test_attended_rows.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../adamw/test_adamw.cpp ${CMAKE_CURRENT_LIST_DIR}/../grad_norm/test_grad_norm.cpp
  DEPENDS hyscale_kernels)
set(cuda_sources ${CMAKE_CURRENT_LIST_DIR}/test_gemm_cuda.cpp)
foreach(op rms_norm layer_norm rope swiglu embedding lm_head_loss router moe_permute elementwise adamw dense_attention hyper_connection compressor attended_rows)
  list(APPEND cuda_sources ${CMAKE_CURRENT_LIST_DIR}/../${op}/test_${op}_cuda.cpp)
endforeach()
hyscale_test(test_dense_ops_cuda SOURCES ${cuda_sources} DEPENDS hyscale_kernels)
