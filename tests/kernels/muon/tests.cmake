set(newton_schulz ${CMAKE_CURRENT_LIST_DIR}/../newton_schulz)
hyscale_test(test_muon_ops SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_muon.cpp ${CMAKE_CURRENT_LIST_DIR}/test_muon_cuda.cpp
  ${newton_schulz}/test_newton_schulz.cpp ${newton_schulz}/test_newton_schulz_cuda.cpp DEPENDS hyscale_kernels)
